"""Attention to keys that are chosen by their positions: what its forms share."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from sterna.model.mixers.attention.dot_product import Attention

__all__ = ["Masked"]


class Masked(Attention):
    """:class:`Attention` under a mask of positions.

    Costs are those of the mechanism: products for the keys that the mask lets through, counted
    from the mask itself. A piece of n tokens is computed under the mask with all products of
    its queries and the keys at hand.
    """

    @abstractmethod
    def pattern(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Bool ``[queries, keys]``: which of the keys at ``0, 1, ... n - 1`` the queries at the
        positions ``[queries]`` see; every query sees at least itself."""

    def allowed(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """The pattern."""
        return self.pattern(queries, keys)

    def seen(self, length: int) -> int:
        """The keys that token number ``length`` sees; not causal, the mean rounded up."""
        keys = torch.arange(length)
        queries = keys[-1:] if self.causal else keys
        pairs = sum(int(self.pattern(part, keys).sum()) for part in queries.split(256))
        return -(-pairs // max(1, len(queries)))
