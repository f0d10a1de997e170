"""Block-local attention: every token sees its own block of tokens and the one before."""

from __future__ import annotations

import torch
from torch import Tensor

from sterna.model.checks import check_whole
from sterna.model.mixers.sparse.masked import Masked
from sterna.model.network.projection import MixerInit
from sterna.model.network.registry import token_mixer

__all__ = ["Local"]


@token_mixer("local")
class Local(Masked):
    """:class:`Attention` of a query in block b to the keys of blocks b - 1 and b up to its own.

    The text is cut into blocks of ``block`` tokens (Image Transformer, arXiv 1802.05751, section
    3.3). Not causal, a query sees all of the blocks b - 1, b and b + 1. A band about each query,
    the other thing called local, is the mixer ``window``.

    Per token, between block and 2 block keys: 4 d^2 MACs, 2 d products for each key and 2 d more
    to turn it, as keys are kept unturned; fewer than 4 block d words of state, which fall by half
    where a block begins.

    Parameters
    ----------
    block
        Tokens of a block; at least 1.
    causal
        Whether a token sees earlier ones only.
    heads
        Number of heads; 0 is one for every 32 channels.
    rope
        Whether queries and keys are turned by their positions.
    """

    forgets = True

    def __init__(
        self, init: MixerInit, *, block: int = 32, causal: bool = True, heads: int = 0,
        rope: bool = True,
    ) -> None:
        check_whole("block", block, 1)
        super().__init__(init, heads=heads, causal=causal, rope=rope)
        self.block = block

    def pattern(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Blocks that are neighbours; what is forgotten is whole blocks, so blocks at hand
        begin where those of the text do."""
        back = (queries // self.block).unsqueeze(-1) - keys // self.block
        if not self.causal:
            return back.abs() <= 1
        return (back >= 0) & (back <= 1) & (keys <= queries.unsqueeze(-1))

    def allowed(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """The pattern; a single query sees all that is kept."""
        return None if queries.shape[0] == 1 else self.pattern(queries, keys)

    def kept(self, keys: Tensor) -> Tensor:
        """The block that the next token is in, as far as it is there, and the one before.

        A copy: a slice would hold the memory of what it leaves out, and in an exported graph
        its strides would depend on whether it leaves out anything.
        """
        at = torch.arange(keys.shape[2], device=keys.device)
        return keys.index_select(2, at[keys.shape[2] - self._kept(keys.shape[2]):])

    def _kept(self, length: int) -> int:
        return length - self.block * max(0, length // self.block - 1)

    def state_words(self, length: int) -> int:
        """Keys and values of the block before, and of the own one as far as it is there."""
        return 2 * self._kept(length) * self.kv_heads * self.width if self.causal else 0

    def products(self, length: int) -> int:
        """Scores and the weighted sum; with RoPE the turning of a query and of the keys: each
        once, or if causal all that are seen."""
        seen = self.seen(length)
        turned = 2 * (self.heads + (seen if self.causal else 1) * self.kv_heads) * self.width
        return 2 * seen * self.heads * self.width + (turned if self.rope else 0)
