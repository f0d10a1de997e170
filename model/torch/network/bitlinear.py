"""A linear map with ternary weights and 8-bit activations.

It computes ``y = absmax_quantize(x) @ ternarize(weight).T + bias``. :func:`bit_linear` multiplies
integers with codes first and then applies the scales. The sums are thus exact in float32 (up to
2^24 / 127 columns), hence independent of the summation order, the number of threads and the batch,
and they stay exact when the matrix unit takes its inputs in bfloat16 or TF32.

Values derived from weights are cached during evaluation until the weights change
(:class:`KeepsCodes`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from sterna.model.torch.network.autocast import keeps_precision
from sterna.model.torch.network.kernels import Replaceable, by_triton, kernels_for
from sterna.model.torch.network.quantizers import (
    absmax_codes,
    absmax_gradient,
    absmax_quantize,
    ternarize,
    ternary_codes_and_scale,
    ternary_scale,
)
from sterna.model.torch.triton_kernels.limits import WIDEST_ROW

__all__ = [
    "BitLinear", "KeepsCodes", "bit_linear", "codes_and_row_scale", "float_linear",
    "naive_bit_linear", "project_codes",
]

_Made = TypeVar("_Made")

_steps = [0]
"""Number of optimiser steps done by this process."""


def _count_step(*_: Any) -> None:
    if not torch.compiler.is_compiling():
        _steps[0] += 1


# Fused optimisers write to parameters without updating their version counters.
register_optimizer_step_post_hook(_count_step)


class _Kept(Generic[_Made]):
    """A value computed from parameters, recomputed when one of them is seen to have changed.

    Detected: steps of any torch optimiser, in-place operations such as ``load_state_dict``, another
    tensor by ``.data =`` or as a new parameter, another type or device. **Not** detected, as torch
    keeps no record: ``parameter.data.mul_(2)``, writes to the memory through NumPy, a compiled
    ``optimizer.step``. Copies and pickles of it are empty.
    """

    def __init__(self) -> None:
        self._made: _Made | None = None
        self._sources: tuple[tuple[Tensor, int], ...] = ()
        self._step = 0

    def get(self, parameters: Sequence[Tensor], make: Callable[[], _Made]) -> _Made:
        """The result of ``make()`` for the current parameters."""
        if self._made is None or not self._same(parameters):
            self._made, self._step = make(), _steps[0]
            # A detached tensor keeps the memory alive, so that its address is not reused.
            self._sources = tuple((each.detach(), each._version) for each in parameters)
        return self._made

    def clear(self) -> None:
        self._made, self._sources = None, ()

    def _same(self, parameters: Sequence[Tensor]) -> bool:
        return self._step == _steps[0] and len(parameters) == len(self._sources) and all(
            version == each._version and source.dtype is each.dtype
            and source.device == each.device and source.is_set_to(each)
            for each, (source, version) in zip(parameters, self._sources, strict=True))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


class KeepsCodes(nn.Module):
    """A module that caches the codes of its ternary weights during evaluation.

    That is after ``eval()``, without gradients; they take as much memory as float32 weights.
    ``train()``, ``eval()`` and a move to another type or device drop them, so a loop that calls
    these around its evaluation is safe whatever happens to the weights in between.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.kept: _Kept[Any] = _Kept()

    def keeps(self, parameters: Sequence[Tensor]) -> bool:
        """Whether to cache codes now: not while tracing a graph, nor for tensors computed at every
        call, as by a parametrisation."""
        return not (self.training or torch.is_grad_enabled() or torch.compiler.is_compiling()) and (
            all(type(each) is nn.Parameter and not (each.is_meta or each.is_inference())
                for each in parameters))

    def train(self, mode: bool = True) -> Any:
        self.kept.clear()
        return super().train(mode)

    def _apply(self, *arguments: Any, **options: Any) -> Any:
        self.kept.clear()
        return super()._apply(*arguments, **options)


@keeps_precision
def naive_bit_linear(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] | None,
    limit: float = math.inf,
) -> Tensor:
    """Reference version of :func:`bit_linear` from its two quantisers and autograd."""
    weight = torch.cat([ternarize(weight) for weight in weights])
    bias = torch.cat(list(biases)) if biases else None
    return F.linear(absmax_quantize(x), weight, bias).clamp(-limit, limit)


class _BitLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, limit: float, bias: Tensor | None, *weights: Tensor,
    ) -> Tensor:
        codes, row_scale = (each.to(x.dtype) for each in codes_and_row_scale(weights))
        out, q, gain, inverse = _multiply(x, codes, row_scale, bias, limit)
        clamped = out if limit < math.inf else None
        # Integers up to 127: one byte each is kept, not four.
        ctx.save_for_backward(
            q.to(torch.int8), gain, inverse, codes.to(torch.int8), row_scale, clamped)
        ctx.limit = limit
        ctx.rows = [weight.shape[0] for weight in weights]
        ctx.has_bias = bias is not None
        return out

    @staticmethod
    @keeps_precision
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, gain, inverse, codes, row_scale, clamped = ctx.saved_tensors
        shape = grad.shape
        if clamped is not None:
            grad = torch.ops.aten.hardtanh_backward(grad, clamped, -ctx.limit, ctx.limit)
        grad = grad.reshape(-1, shape[-1])
        to_bias = grad.sum(0) if ctx.has_bias else None
        normalised = q.mul(inverse)
        to_weights = (grad.t() @ normalised).split(ctx.rows)
        slope = gain * inverse
        if row_scale.dim():
            grad = grad * row_scale
        else:
            slope.mul_(row_scale)
        to_x = absmax_gradient(grad @ codes.to(grad.dtype), normalised, slope)
        return to_x.view(*shape[:-1], to_x.shape[-1]), None, to_bias, *to_weights


def codes_and_row_scale(weights: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The weights of :func:`bit_linear` as float32 codes ``[rows of all, columns]`` and the scale
    of each row ``[rows of all]``; without dimensions for a single matrix."""
    parts = [ternary_codes_and_scale(weight) for weight in weights]
    if len(parts) == 1:
        return parts[0]
    return (torch.cat([codes for codes, _ in parts]),
            torch.cat([scale.expand(codes.shape[0]) for codes, scale in parts]))


def _multiply(
    x: Tensor, codes: Tensor, row_scale: Tensor, bias: Tensor | None, limit: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The outputs, then the results of :func:`absmax_codes` for ``x [count, columns]``."""
    q, gain, inverse = absmax_codes(x.reshape(-1, x.shape[-1]))
    sums = q @ codes.t()
    if row_scale.dim():
        sums.mul_(row_scale)
        factor = inverse
    else:       # one scale for all rows of the matrix
        factor = inverse * row_scale
    out = sums.mul_(factor) if bias is None else torch.addcmul(bias, sums, factor)
    # Not a view, as the sums are not shared: FSDP2 attaches hooks to module outputs, and an
    # in-place operation on a view would lose them.
    out = torch.ops.aten._unsafe_view(out, [*x.shape[:-1], out.shape[-1]])
    if limit < math.inf:
        out.clamp_(-limit, limit)
    return out, q, gain, inverse


@keeps_precision
def project_codes(
    x: Tensor, codes: Tensor, row_scale: Tensor, bias: Tensor | None, limit: float = math.inf,
) -> Tensor:
    """The result of :func:`bit_linear`, without gradients, from :func:`codes_and_row_scale`."""
    return _multiply(x, codes.to(x.dtype), row_scale.to(x.dtype), bias, limit)[0]


def _gained(weight: Tensor, gain: Tensor, matrix: Tensor) -> Tensor:
    """``weight * gain``, with the gradient of the gain taken through the ternary matrix: through
    the latent weights, `tiny` lost 0.08 bits per byte. No parameter is saved for the backward pass,
    before which FSDP frees its memory."""
    size = gain.detach().clone()
    return weight * size + (gain - size) * matrix


@Replaceable
@keeps_precision
def bit_linear(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] | None,
    limit: float = math.inf, gains: Sequence[Tensor] | None = None,
) -> Tensor:
    """Normalise and quantise ``x [..., columns]`` once, and project it with every weight.

    ``weights`` are latent matrices ``[rows, columns]``, each ternarised with a separate scale,
    ``biases`` one ``[rows]`` for each, or None. Returns the concatenated outputs
    ``[..., rows of all]``. They saturate at plus and minus ``limit``, and saturated ones pass no
    gradient; others pass straight through both quantisers. ``gains`` are factors ``[1]``, one per
    matrix.
    """
    if gains is not None:
        weights = [_gained(weight, gain, ternarize(weight).detach())
                   for weight, gain in zip(weights, gains, strict=True)]
    kernels = kernels_for(x, *weights, *(biases or ()))
    if kernels is not None:
        return kernels.bit_linear(x, weights, biases, limit)
    bias = None if biases is None else biases[0] if len(biases) == 1 else torch.cat(list(biases))
    if x.shape[-1] <= WIDEST_ROW and by_triton(x, *weights, *(biases or ())):
        from sterna.model.torch.triton_kernels import bitlinear as for_gpu

        scales = [ternary_scale(weight) for weight in weights]
        return for_gpu.bit_linear(x, weights, scales, bias, limit=limit)
    result: Tensor = _BitLinear.apply(x, limit, bias, *weights)
    return result


def float_linear(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] | None,
    limit: float = math.inf, gains: Sequence[Tensor] | None = None,
) -> Tensor:
    """Drop-in replacement of :func:`bit_linear` without its two quantisers: ``x`` is divided by its
    root mean square and projected by the latent weights."""
    if gains is not None:
        weights = [_gained(weight, gain, weight.detach().clone())
                   for weight, gain in zip(weights, gains, strict=True)]
    normalised = F.rms_norm(x, x.shape[-1:], eps=1e-12)
    bias = None if biases is None else torch.cat(list(biases))
    return F.hardtanh(F.linear(normalised, torch.cat(list(weights)), bias), -limit, limit)


class BitLinear(KeepsCodes):
    """One ternary projection: latent weights ``[rows, columns]``, a gain ``[1]`` and a bias
    ``[rows]``.

    Weights are initialised uniformly within ``±1/sqrt(columns)``, drawn by ``generator``, the gain
    at one, biases at zero. ``round_bias`` is applied to the bias before it is added, as to its
    integer format. The gain multiplies the matrix: its scale can grow while weight decay keeps
    weights so small that codes flip.
    """

    def __init__(
        self, columns: int, rows: int, *, bias: bool = True, gain: bool = True,
        generator: torch.Generator | None = None,
        round_bias: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(columns)
        initial = torch.empty(rows, columns).uniform_(-bound, bound, generator=generator)
        self.weight = nn.Parameter(initial)
        self.gain = nn.Parameter(torch.ones(1)) if gain else None
        self.bias = nn.Parameter(torch.zeros(rows)) if bias else None
        self._round_bias = round_bias

    @property
    def latent(self) -> Tensor:
        """The matrix to ternarise, ``[rows, columns]``: the weights times the gain."""
        if self.gain is None:
            return self.weight
        return _gained(self.weight, self.gain, ternarize(self.weight).detach())

    @property
    def added(self) -> Tensor | None:
        """The bias as it is added to the sums."""
        if self.bias is None or self._round_bias is None:
            return self.bias
        return self._round_bias(self.bias)

    @property
    def sources(self) -> list[Tensor]:
        """The existing ones of weights, gain and bias."""
        return [each for each in (self.weight, self.gain, self.bias) if each is not None]

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [..., columns]``, not normalised, to ``[..., rows]``."""
        bias = self.added
        if self.keeps(self.sources):
            codes, scale = self.kept.get(
                self.sources, lambda: codes_and_row_scale([self.latent]))
            return project_codes(x, codes, scale, bias)
        return bit_linear(x, [self.weight], None if bias is None else [bias],
                          gains=None if self.gain is None else [self.gain])
