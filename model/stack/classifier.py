"""A classifier of whole sequences, for mixers that see all tokens at once as well."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sterna.model.config import ModelConfig
from sterna.model.network.numerics import Limits
from sterna.model.network.projection import MixerInit
from sterna.model.profile import S16, NumericProfile
from sterna.model.stack.block import Block

__all__ = ["Classifier"]


class Classifier(nn.Module):
    """Blocks between an embedding with learned positions and the mean over time, then a head.

    It maps sequences of ``length`` tokens, one of ``config.vocab`` each, to ``classes``; ternary
    weights are trained for the formats of a profile.
    """

    def __init__(
        self, config: ModelConfig, classes: int, length: int, *, seed: int = 0,
        profile: NumericProfile = S16,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        ternary = config.weights == "ternary"
        init = MixerInit(config.d, config.dff, ternary, generator, Limits(profile))
        self.length, self.numerics = length, init.numerics
        self.embedding, self.positions = (
            init.embedding(count) for count in (config.vocab, length))
        self.layers = nn.ModuleList(Block(config, *choices, init) for choices in config.mixers())
        self.norm = nn.Identity() if ternary else nn.RMSNorm(config.d, eps=1e-6)
        self.head = init.linear(config.d, classes, bias=False)
        for block in self.blocks():
            block.mixer.check_length(length)

    def blocks(self) -> list[Block]:
        """The layers, first to last."""
        return [block for block in self.layers if isinstance(block, Block)]

    def forward(self, tokens: Tensor) -> Tensor:
        """Map whole numbers ``[batch, length]`` to logits ``[batch, classes]``."""
        if tokens.shape[1] != self.length:
            raise ValueError(f"sequences must have {self.length} tokens, got {tokens.shape[1]}")
        x = self.embedding(tokens.t()) + self.positions.weight.unsqueeze(1)
        x = self.numerics.x(x)
        for block in self.blocks():
            x, _ = block(x, block.mixer.initial_state(x))
        return self.head(self.norm(x.mean(dim=0)))
