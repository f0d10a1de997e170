"""The float language model with a quantisation-aware forward pass, and a classifier of whole
sequences, which also takes mixers that are not causal."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor, nn

from sterna.model.config import ModelConfig
from sterna.model.profile import S16, NumericProfile
from sterna.model.torch.network.bitlinear import BitLinear
from sterna.model.torch.network.dense_mml import gained
from sterna.model.torch.network.mixer import State
from sterna.model.torch.network.numerics import Numerics, numerics_for
from sterna.model.torch.network.projection import MixerInit
from sterna.model.torch.stack.block import Block, run_reversible

__all__ = ["Classifier", "LanguageModel", "ModelState"]

ModelState: TypeAlias = tuple[State, ...]
"""The state of the token mixer of every layer, first to last."""

_PLACES = {
    "mlgru.f": "mixer.fcg.f", "mlgru.c": "mixer.fcg.c", "mlgru.g": "mixer.fcg.g",
    "mlgru.out": "mixer.out", "glu.gate": "channel.gate_up.gate", "glu.up": "channel.gate_up.up",
    "glu.down": "channel.down"}
"""Paths of a layer's projections in its block."""

_MUCH = 1 << 20
"""Tokens after which a state that does not grow has stopped growing."""


class _Stack(nn.Module):
    """Blocks, a norm if weights are float, and a head."""

    def _build(self, config: ModelConfig, init: MixerInit, outputs: int) -> None:
        self.numerics = init.numerics
        self.layers = nn.ModuleList(
            Block(config, *choices, replace(init, layer=layer, layers=config.layers))
            for layer, choices in enumerate(config.mixers()))
        linear, self.norm = gained(init, config.is_hgrn_bit)
        if not init.ternary:
            self.norm = nn.RMSNorm(config.d, eps=1e-6)
        self.head = (
            linear(config.d, outputs, bias=False) if config.is_hgrn_bit
            else init.linear(config.d, outputs, bias=init.ternary, output="logit"))

    def blocks(self) -> list[Block]:
        """The layers, first to last."""
        return [block for block in self.layers if isinstance(block, Block)]


class LanguageModel(_Stack):
    """Blocks between an embedding and a head; by default the MatMul-free language model.

    The same ``seed`` gives the same initial weights, whatever the state of torch's global
    generator. With ternary weights values saturate as in the formats of ``profile``, and are
    rounded to coarse ones (:func:`~sterna.model.torch.network.numerics.numerics_for`).

    Raises ValueError if a mixer is unknown, lacks an option, or is not causal.
    """

    resets_at: int | None = None
    """Token before which the state is reset: see :meth:`reset_at`."""

    def __init__(
        self, config: ModelConfig, *, seed: int = 0, profile: NumericProfile = S16,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.config, self.profile = config, profile
        init = MixerInit(config.d, config.dff, config.weights == "ternary", generator,
                         Numerics() if config.is_hgrn_bit else numerics_for(profile))
        self.embedding = init.embedding(config.vocab)
        self._build(config, init, config.vocab)
        for (token, _), block in zip(config.mixers(), self.blocks(), strict=True):
            if not block.mixer.causal:
                raise ValueError(
                    f"{token} is not causal, so it cannot predict the next token: a language "
                    f"model needs a causal mixer")

    def reset_at(self, token: int | None) -> None:
        """Set :attr:`resets_at`, so that documents are read independently. Raises ValueError if a
        mixer or a reversible residual stream does not support it."""
        others = sorted({choice.name for (choice, _), block in zip(
            self.config.mixers(), self.blocks(), strict=True) if not block.mixer.resets})
        if token is not None and (others or self.config.residual != "plain"):
            raise ValueError(
                f"the state starts anew within a text for the mixer mlgru and residual plain, got "
                f"{', '.join(others) or self.config.mixer} and {self.config.residual}")
        self.resets_at = token

    def named_projections(self) -> dict[str, BitLinear]:
        """Every ternary projection of a model with an integer form, with the names and order of
        ``config.projections()``. Raises ValueError if another module is in the place of one."""
        named = {}
        for name in self.config.projections():
            layer, _, part = name.partition(".")
            path = f"layers.{layer[5:]}.{_PLACES[part]}" if part else name
            module = self.get_submodule(path)
            if not isinstance(module, BitLinear):
                raise ValueError(
                    f"{path} must be a BitLinear, got a {type(module).__name__}: it has no "
                    f"integer form")
            named[name] = module
        return named

    def initial_state(self, batch: int) -> ModelState:
        """Return the state at the start of ``batch`` texts."""
        weight = self.embedding.weight     # its new_zeros would be sharded under FSDP2
        x = torch.zeros(batch, self.config.d, dtype=weight.dtype, device=weight.device)
        return tuple(block.mixer.initial_state(x) for block in self.blocks())

    @property
    def longest(self) -> int | None:
        """Maximum tokens that every mixer accepts, None for any number."""
        return min((block.mixer.longest for block in self.blocks()
                    if block.mixer.longest is not None), default=None)

    @property
    def state_is_bounded(self) -> bool:
        """Whether texts of any length can be read: no state grows, no mixer has a maximum length.
        """
        return self.longest is None and all(
            block.mixer.state_words(_MUCH) == block.mixer.state_words(2 * _MUCH)
            for block in self.blocks())

    def forward_time_major(
        self, tokens: Tensor, state: ModelState,
    ) -> tuple[Tensor, ModelState]:
        """As :meth:`forward` for tokens ``[time, batch]``; logits are ``[time, batch, vocab]``."""
        starts = None if self.resets_at is None else (tokens == self.resets_at).unsqueeze(-1)
        x, after = self._run(self._embed(tokens), state, starts)
        return self.numerics.logit(self.head(self.norm(x))), after

    def _run(
        self, x: Tensor, state: ModelState, starts: Tensor | None,
    ) -> tuple[Tensor, ModelState]:
        if self.config.residual == "reversible":
            return run_reversible(self.blocks(), x, state)
        after = []
        for block, before in zip(self.blocks(), state, strict=True):
            x, new = block(x, before) if starts is None else block(x, before, starts)
            after.append(new)
        return x, tuple(after)

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.numerics.x(self.embedding(tokens))

    def forward(
        self, tokens: Tensor, state: ModelState | None = None,
    ) -> tuple[Tensor, ModelState]:
        """Predict the token after each of a row: from integers ``[batch, time]`` and the state
        before them, by default the initial one, to logits ``[batch, time, vocab]`` and the next
        state."""
        if state is None:
            state = self.initial_state(tokens.shape[0])
        logits, state = self.forward_time_major(tokens.t(), state)
        return logits.transpose(0, 1), state

    def step(self, tokens: Tensor, state: ModelState) -> tuple[Tensor, ModelState]:
        """Predict the token after one: ``tokens [batch]`` to logits ``[batch, vocab]``, and the
        next state; the same result as :meth:`forward` on a row of one."""
        return self.forward_time_major(tokens, state)


class Classifier(_Stack):
    """Blocks between an embedding with learned positions and the mean over time, then a head:
    sequences of ``length`` tokens from ``config.vocab`` to ``classes``."""

    def __init__(
        self, config: ModelConfig, classes: int, length: int, *, seed: int = 0,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        init = MixerInit(config.d, config.dff, config.weights == "ternary", generator)
        self.length = length
        self.embedding, self.positions = (
            init.embedding(count) for count in (config.vocab, length))
        self._build(config, init, classes)
        for block in self.blocks():
            block.mixer.check_length(length)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map integers ``[batch, length]`` to logits ``[batch, classes]``."""
        if tokens.shape[1] != self.length:
            raise ValueError(f"sequences must have {self.length} tokens, got {tokens.shape[1]}")
        x = self.embedding(tokens.t()) + self.positions.weight.unsqueeze(1)
        x = self.numerics.x(x)
        for block in self.blocks():
            x, _ = block(x, block.mixer.initial_state(x))
        return self.head(self.norm(x.mean(dim=0)))
