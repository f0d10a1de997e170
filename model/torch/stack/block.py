"""A block: a token mixer and a channel mixer, each added to the residual stream.

Reversible blocks keep few activations: the backward pass reconstructs the inputs of a block from
its outputs (:func:`run_reversible`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

import sterna.model.torch.mixers  # noqa: F401  (registers them)
from sterna.model.config import ModelConfig
from sterna.model.pattern import Choice
from sterna.model.torch.network.gates import residual_sum
from sterna.model.torch.network.mixer import Mixer, State
from sterna.model.torch.network.projection import MixerInit
from sterna.model.torch.network.registry import CHANNEL_MIXERS, TOKEN_MIXERS

__all__ = ["Block", "run_reversible"]


class Block(nn.Module):
    """``x += mixer(norm(x)); x += channel(norm(x))``, or ``x = norm(x + ...)`` with post-norm.

    A ternary projection normalises its input, so a mixer that begins with one has no norm before
    it. The residual stream of ternary blocks with pre-norm is limited by ``init.numerics``.
    Reversible blocks (:func:`run_reversible`) combine the outputs of the two mixers differently.
    One that ``recomputes`` keeps only its inputs in training, and is recomputed in the backward
    pass.
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
        """Map ``x [time, batch, d]`` and the state of the token mixer to the output and next state.

        A single token may omit the time axis, ``[batch, d]``. ``starts`` is for a mixer that
        :attr:`~sterna.model.torch.network.mixer.TokenMixer.resets`.
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
        """The token mixer's addition to ``x``, and the state after it."""
        mixer = self.mixer.step if x.dim() == 2 else self.mixer
        more = () if starts is None else (starts,)
        return mixer(self._before(0, x), state, *more)

    def change(self, x: Tensor) -> Tensor:
        """The channel mixer's addition to ``x``."""
        return self.channel(self._before(1, x))

    def _before(self, which: int, x: Tensor) -> Tensor:
        return self.norms[which](x) if self.pre else x

    def _after(self, which: int, x: Tensor, added: Tensor) -> Tensor:
        if self.pre:
            return residual_sum(x, added, self.numerics)
        return self.norms[which](x + added)


Pair: TypeAlias = tuple[Tensor, Tensor]
"""The two halves of the residual stream, each ``[time, batch, d]`` or ``[batch, d]``."""


def run_reversible(
    blocks: Sequence[Block], x: Tensor, states: Sequence[State],
) -> tuple[Tensor, tuple[State, ...]]:
    """Run blocks with pre-norm as ``y1 = x1 + F(x2)``, ``y2 = x2 + G(y1)``: F is the token mixer of
    a block and G its channel mixer, each after its norm (RevNet, arXiv 1707.04585, equation 6;
    Reformer, arXiv 2001.04451, section 3).

    Both halves begin as ``x [time, batch, d]``, and the result is their mean, with the state of
    every token mixer. Training keeps only the output of the last block and the input states: the
    backward pass computes ``x2 = y2 - G(y1)`` and ``x1 = y1 - F(x2)``, so each block is computed
    twice. The reconstructed inputs are exact but for rounding, so activation codes may differ for
    values near a threshold. The residual stream is not limited: a limit has no inverse.
    """
    if torch.is_grad_enabled():
        counts = [len(each) for each in states]
        parameters = [each for block in blocks for part in _parameters(block) for each in part]
        y1, y2, *flat = _Reversible.apply(blocks, counts, x, x, *chain(*states), *parameters)
        after = _grouped(flat, counts)
    else:
        (y1, y2), after = _forward(blocks, (x, x), states)
    return (y1 + y2) / 2, after


def _forward(
    blocks: Sequence[Block], halves: Pair, states: Sequence[State],
) -> tuple[Pair, tuple[State, ...]]:
    x1, x2 = halves
    after = []
    for block, before in zip(blocks, states, strict=True):
        mixed, state = block.mix(x2, before)
        x1 = x1 + mixed
        x2 = x2 + block.change(x1)
        after.append(state)
    return (x1, x2), tuple(after)


class _Reversible(torch.autograd.Function):
    """All blocks as one function of the halves, the states and the parameters, in that order."""

    @staticmethod
    def forward(
        ctx: Any, blocks: Sequence[Block], counts: list[int], x1: Tensor, x2: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        halves, after = _forward(blocks, (x1, x2), _grouped(tensors, counts))
        flat = [_own(each) for each in chain(*after)]
        ctx.blocks, ctx.counts = blocks, counts
        ctx.save_for_backward(*halves, *tensors)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(each for each in flat if not _has_gradient(each)))
        return *halves, *flat

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        y1, y2, *tensors = ctx.saved_tensors
        halves = y1, y2
        slopes = (torch.zeros_like(y1) if grads[0] is None else grads[0],
                  torch.zeros_like(y2) if grads[1] is None else grads[1])
        states, state_grads = _grouped(tensors, ctx.counts), _grouped(grads[2:], ctx.counts)
        to_states: list[list[Tensor | None]] = []
        to_parameters: list[list[Tensor | None]] = []
        for block, before, after in zip(
                reversed(ctx.blocks), reversed(states), reversed(state_grads), strict=True):
            halves, slopes, to_state, to_parameter = _back(block, before, after, halves, slopes)
            to_states.insert(0, to_state)
            to_parameters.insert(0, to_parameter)
        return None, None, *slopes, *chain(*to_states), *chain(*to_parameters)


def _back(
    block: Block, before: State, after_grads: Sequence[Tensor | None], halves: Pair, slopes: Pair,
) -> tuple[Pair, Pair, list[Tensor | None], list[Tensor | None]]:
    """Inputs and their gradients from outputs and theirs, then gradients of state and parameters.
    """
    (y1, y2), (slope1, slope2) = halves, slopes
    mixing, changing = _parameters(block)

    y1 = y1.detach().requires_grad_()
    with torch.enable_grad():
        changed = block.change(y1)
    to_y1, *to_changing = _gradients([changed], [slope2], [y1, *changing])
    x2 = (y2 - changed).detach().requires_grad_()
    slope1 = slope1 if to_y1 is None else slope1 + to_y1

    before = tuple(each.detach().requires_grad_(_has_gradient(each)) for each in before)
    with torch.enable_grad():
        mixed, after = block.mix(x2, before)
    to_x2, *rest = _gradients(
        [mixed, *after], [slope1, *after_grads], [x2, *before, *mixing])
    slope2 = slope2 if to_x2 is None else slope2 + to_x2
    x1 = (y1 - mixed).detach()
    return ((x1, x2.detach()), (slope1, slope2), rest[:len(before)],
            [*rest[len(before):], *to_changing])


def _gradients(
    outputs: Sequence[Tensor], grads: Sequence[Tensor | None], inputs: Sequence[Tensor],
) -> list[Tensor | None]:
    """Gradients of the inputs; None if not needed, or if no output depends on the input."""
    pairs = [(output, grad) for output, grad in zip(outputs, grads, strict=True)
             if grad is not None and output.requires_grad]
    wanted = [each for each in inputs if each.requires_grad]
    found = iter(torch.autograd.grad(
        [output for output, _ in pairs], wanted, [grad for _, grad in pairs], allow_unused=True))
    return [next(found) if each.requires_grad else None for each in inputs]


def _parameters(block: Block) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters of F and those of G."""
    first, second = block.norms
    return ([*block.mixer.parameters(), *first.parameters()],
            [*block.channel.parameters(), *second.parameters()])


def _grouped(tensors: Sequence[Any], counts: Sequence[int]) -> tuple[tuple[Any, ...], ...]:
    """The leading tensors in groups of the given sizes."""
    rest = iter(tensors)
    return tuple(tuple(next(rest) for _ in range(count)) for count in counts)


def _own(x: Tensor) -> Tensor:
    """A copy of a view: a slice, such as the last of all hidden vectors, keeps all of them alive.
    """
    whole = x.untyped_storage().nbytes() == x.numel() * x.element_size()
    return x if whole else x.clone()


def _has_gradient(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()
