"""Strided attention: the newest tokens, and of the older ones every stride-th."""

from __future__ import annotations

from torch import Tensor

from sterna.model.checks import check_whole
from sterna.model.mixers.sparse.masked import Masked
from sterna.model.network.projection import MixerInit
from sterna.model.network.registry import token_mixer

__all__ = ["Strided"]


@token_mixer("strided")
class Strided(Masked):
    """:class:`Attention` of query i to keys j with ``i - j < l`` or ``(i - j) mod l = 0``.

    Of the factorised attention of Sparse Transformers (arXiv 1904.10509, section 4.3) both parts
    stand in every head, their union: what the paper calls a merged head (section 5.1), which
    works for one head, too. From any token every earlier one is reached in two layers.

    Per token after n, l of them the stride: 4 d^2 MACs, 2 (l + n / l) d products, so least for l
    near the root of the length; 2 n d words of state, as every key is seen again later.

    Parameters
    ----------
    stride
        The l above; at least 1, which is full attention.
    heads
        Number of heads; 0 is one for every 32 channels.
    rope
        Whether queries and keys are turned by their positions.
    """

    def __init__(
        self, init: MixerInit, *, stride: int = 32, heads: int = 0, rope: bool = True,
    ) -> None:
        check_whole("stride", stride, 1)
        super().__init__(init, heads=heads, rope=rope)
        self.stride = stride

    def pattern(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The band, and the stripes beside it."""
        back = queries.unsqueeze(-1) - keys
        return (back >= 0) & ((back < self.stride) | (back % self.stride == 0))
