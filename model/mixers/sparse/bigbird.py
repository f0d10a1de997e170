"""BigBird attention: neighbouring blocks, blocks that all see, and blocks drawn by chance."""

from __future__ import annotations

import torch
from torch import Tensor

from sterna.model.checks import check_whole
from sterna.model.mixers.sparse.masked import Masked
from sterna.model.network.projection import MixerInit
from sterna.model.network.registry import token_mixer

__all__ = ["BigBird"]


@token_mixer("bigbird")
class BigBird(Masked):
    """:class:`Attention` over blocks of tokens (arXiv 2007.14062, section 2 and appendix D).

    A query sees its own block and both beside it, the first and the last one (global: their
    queries see everything), and ``random`` of the others. Causal, what comes later is not seen:
    that leaves the own block up to the query, the one before, the first, and ``random`` of the
    others before. Which those are follows from a number drawn with the initial weights, the
    block of the query and, if not causal, the number of blocks. All heads see the same.

    Per token, of block b: 4 d^2 MACs, at most 2 (5 + random) b d products for a query that is not
    global, 2 (3 + random) b d if causal; 2 n d words of state, as any block may be drawn later.

    Parameters
    ----------
    block
        Tokens of a block; at least 1. The last one may be shorter.
    random
        Blocks drawn for each block of queries, as far as there are others.
    causal
        Whether a token sees earlier ones only.
    heads
        Number of heads; 0 is one for every 32 channels.
    """

    draw: Tensor

    def __init__(
        self, init: MixerInit, *, block: int = 16, random: int = 3, causal: bool = True,
        heads: int = 0,
    ) -> None:
        check_whole("block", block, 1)
        check_whole("random", random, 0)
        super().__init__(init, heads=heads, causal=causal)
        self.block, self.random = block, random
        self.register_buffer("draw", torch.randint(1 << 31, (), generator=init.generator))

    def pattern(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Blocks seen, spread over their tokens."""
        count = -(-keys.shape[0] // self.block)
        mask = self.blocks(queries // self.block, count)[:, keys // self.block]
        return mask & (keys <= queries.unsqueeze(-1)) if self.causal else mask

    def blocks(self, rows: Tensor, count: int) -> Tensor:
        """Bool ``[rows, count]``: which of ``count`` blocks the queries of blocks ``rows`` see."""
        row, column = rows.unsqueeze(-1), torch.arange(count, device=rows.device)
        if self.causal:
            always = (column == 0) | (column == row) | (column == row - 1)
            others = (column < row) & ~always
        else:
            ends = (column == 0) | (column == count - 1) | (row == 0) | (row == count - 1)
            always = ends | ((row - column).abs() <= 1)
            others = ~always
        lots = _lots(self.draw.to(rows.device), row, column)
        order = torch.where(others, lots, _LIMIT).argsort(dim=-1, stable=True)    # others first
        rank = order.argsort(dim=-1)
        return always | (others & (rank < self.random))


_LIMIT = 1 << 31


def _lots(draw: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Numbers below 2^31, mixed as by a hash of 32 bits: the same on every machine, for a block
    whatever the length of the text, and without a generator that would have to be kept."""
    x = draw
    for part in (row, column):
        x = (x ^ (part + 1)) & (_LIMIT - 1)
        for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
            x = ((x ^ (x >> shift)) * factor) & (_LIMIT - 1)
        x = x ^ (x >> 15)
    return x
