"""Sliding-window attention: every token sees its own and the few before it."""

from __future__ import annotations

from torch import Tensor

from sterna.model.checks import check_whole
from sterna.model.mixers.attention.dot_product import Attention
from sterna.model.network.projection import MixerInit
from sterna.model.network.registry import token_mixer

__all__ = ["Window"]


@token_mixer("window")
class Window(Attention):
    """``softmax(s Q K^T) V`` over the keys ``i - size < j <= i`` of query i (arXiv 2004.05150).

    Heads, rotation and projections are those of :class:`Attention`. Per token, once there are
    that many: 4 d^2 MACs, 2 size d products, 2 (size - 1) d words of state. Keys are kept unturned,
    so with ``rope`` a step turns all that it compares, 2 (size + 1) d products more. A piece of n
    tokens at once is computed under a mask, with all n^2 scores.

    Parameters
    ----------
    size
        Keys that a token sees, its own included; at least 1.
    heads
        Number of heads; 0 is one for every 32 channels.
    rope
        Whether queries and keys are turned by their positions.
    """

    forgets = True

    def __init__(
        self, init: MixerInit, *, size: int = 64, heads: int = 0, rope: bool = True,
    ) -> None:
        check_whole("size", size, 1)
        super().__init__(init, heads=heads, rope=rope)
        self.size = size

    def allowed(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """The band; a single query sees all that is kept."""
        if queries.shape[0] == 1:
            return None
        back = queries.unsqueeze(-1) - keys
        return (back >= 0) & (back < self.size)

    def kept(self, keys: Tensor) -> Tensor:
        """The newest ``size - 1``: with the next token's own that is all it sees.

        A copy, as a slice would hold the memory of all keys.
        """
        return keys[:, :, max(0, keys.shape[2] - self.size + 1):].clone()

    def seen(self, length: int) -> int:
        """At most ``size``."""
        return min(length, self.size)

    def state_words(self, length: int) -> int:
        """Keys and values of the newest ``size - 1`` tokens."""
        return 2 * min(length, self.size - 1) * self.kv_heads * self.width

    def products(self, length: int) -> int:
        """Scores and the weighted sum; with RoPE the turning of a query and of all keys seen."""
        turned = 2 * (self.heads + self.seen(length) * self.kv_heads) * self.width
        return 2 * self.seen(length) * self.heads * self.width + (turned if self.rope else 0)
