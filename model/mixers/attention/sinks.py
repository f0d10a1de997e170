"""Attention sinks: a window beside the first tokens, so that texts of any length can be read."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.model.checks import check_whole
from sterna.model.mixers.attention.window import Window
from sterna.model.network.projection import MixerInit
from sterna.model.network.registry import token_mixer

__all__ = ["Sinks"]


@token_mixer("sinks")
class Sinks(Window):
    """Attention sinks (StreamingLLM, arXiv 2309.17453): a window, and always the first keys.

    ``softmax(s Q K^T) V`` over the keys ``j < sinks`` and ``i - size < j <= i`` of query i; heads,
    rotation and projections are those of :class:`Attention`.
    The position of a key is its index in the cache (section 3.2): a window's distances are true,
    and a sink is never farther than ``sinks + size - 1``. The cache holds keys before they are
    turned. Per token, once there are that many: 4 d^2 MACs, 2 (sinks + size) d products and with
    ``rope`` 2 (sinks + size + 1) d more, 2 (sinks + size - 1) d words of state.

    Parameters
    ----------
    sinks
        First tokens that every later one sees; 0 is :class:`Window`.
    size
        Newest keys that a token sees, its own included; at least 1.
    heads
        Number of heads; 0 is one for every 32 channels.
    rope
        Whether queries and keys are turned by their positions.
    """

    def __init__(
        self, init: MixerInit, *, sinks: int = 4, size: int = 64, heads: int = 0,
        rope: bool = True,
    ) -> None:
        check_whole("sinks", sinks, 0)
        super().__init__(init, size=size, heads=heads, rope=rope)
        self.sinks = sinks

    def allowed(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """The band and the sinks; a single query sees all that is kept."""
        band = super().allowed(queries, keys)
        if band is None:
            return None
        return band | ((keys < self.sinks) & (keys <= queries.unsqueeze(-1)))

    def kept(self, keys: Tensor) -> Tensor:
        """The sinks, and of the others the newest ``size - 1``."""
        first, others = keys[:, :, :self.sinks], keys[:, :, self.sinks:]
        return torch.cat([first, super().kept(others)], dim=2)

    def turned(self, q: Tensor, k: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Turned by the index in the cache as each query meets it.

        For one query that is the index in the state. Of several, a later one meets a cache from
        which keys between sinks and window are gone: it is nearer to the sinks than to its own
        place. So each query has two forms side by side, ``[..., 2 * width]``, one for either
        kind of key, and a key has zeros where it does not meet the form.
        """
        if queries.shape[0] == 1:
            return super().turned(q, k, queries, keys)
        near, _ = super().turned(q, k, queries.clamp(max=self.sinks + self.size - 1), keys)
        true, k = super().turned(q, k, queries, keys)
        first, others = k[:, :, :self.sinks], k[:, :, self.sinks:]
        k = torch.cat([F.pad(first, (0, self.width)), F.pad(others, (self.width, 0))], dim=2)
        return torch.cat([near, true], dim=-1), k

    def seen(self, length: int) -> int:
        """At most ``sinks + size``."""
        return min(length, self.sinks + self.size)

    def state_words(self, length: int) -> int:
        """Keys and values of the sinks and of the newest ``size - 1`` others."""
        return 2 * min(length, self.sinks + self.size - 1) * self.kv_heads * self.width
