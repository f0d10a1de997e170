"""A block: a token mixer and a channel mixer, each added to the residual stream."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sterna.model.mixers  # noqa: F401  (registers them)
from sterna.model.config import ModelConfig
from sterna.model.network.gates import residual_sum
from sterna.model.network.mixer import Mixer, State
from sterna.model.network.projection import MixerInit
from sterna.model.network.registry import CHANNEL_MIXERS, TOKEN_MIXERS
from sterna.model.pattern import Choice

__all__ = ["Block"]


class Block(nn.Module):
    """``x += mixer(norm(x)); x += channel(norm(x))``, or ``x = norm(x + ...)`` with post-norm.

    A ternary projection normalises its own input, so a norm before a mixer is left out where the
    first thing that happens is one; it would change nothing. The residual stream of ternary
    blocks with pre-norm is limited by ``init.numerics``. Reversible blocks
    (:mod:`sterna.model.stack.reversible`) take what the two mixers add, and do otherwise with it.

    Parameters
    ----------
    config
        Gives widths, kind of norm and of projections.
    token, channel
        The mixers.
    init
        What both are made with.

    Attributes
    ----------
    recomputes
        Whether training keeps the inputs alone, and computes the block again in the backward pass.
    """

    recomputes = False

    def __init__(
        self, config: ModelConfig, token: Choice, channel: Choice, init: MixerInit,
    ) -> None:
        super().__init__()
        self.mixer = TOKEN_MIXERS.build(token, init)
        self.channel = CHANNEL_MIXERS.build(channel, init)
        self.pre, self.numerics = config.norm == "pre", init.numerics
        self.norms = nn.ModuleList(
            nn.RMSNorm(config.d, eps=1e-6, elementwise_affine=not (self.pre and init.ternary))
            if not self.pre or not init.ternary or mixer.wants_norm else nn.Identity()
            for mixer in self._mixers())

    def _mixers(self) -> tuple[Mixer, Mixer]:
        return self.mixer, self.channel

    def forward(
        self, x: Tensor, state: State, starts: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Map ``x [time, batch, d]`` from the state of the token mixer to the same and the next.

        One token may come without its axis of time, ``[batch, d]``. ``starts`` is for a mixer that
        :attr:`~sterna.model.network.mixer.TokenMixer.resets`.
        """
        if self.recomputes and torch.is_grad_enabled():
            result: tuple[Tensor, State] = checkpoint(
                self._both, x, state, starts, use_reentrant=False, preserve_rng_state=False)
            return result
        return self._both(x, state, starts)

    def _both(self, x: Tensor, state: State, starts: Tensor | None) -> tuple[Tensor, State]:
        mixed, after = self.mix(x, state, starts)
        x = self._after(0, x, mixed)
        return self._after(1, x, self.change(x)), after

    def mix(
        self, x: Tensor, state: State, starts: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """What the token mixer adds to ``x``, and the state after it."""
        mixer = self.mixer.step if x.dim() == 2 else self.mixer
        more = () if starts is None else (starts,)
        return mixer(self._before(0, x), state, *more)

    def change(self, x: Tensor) -> Tensor:
        """What the channel mixer adds to ``x``."""
        return self.channel(self._before(1, x))

    def _before(self, which: int, x: Tensor) -> Tensor:
        return self.norms[which](x) if self.pre else x

    def _after(self, which: int, x: Tensor, added: Tensor) -> Tensor:
        if self.pre:
            return residual_sum(x, added, self.numerics)
        return self.norms[which](x + added)
