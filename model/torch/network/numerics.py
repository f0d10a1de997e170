"""Simulation of integer formats in a float model.

There is one method for each format of a :class:`~sterna.model.profile.NumericProfile`, called where
:mod:`sterna.model.quantized.integer` rounds to it, so mixers name no profile: :class:`Numerics`
leaves real numbers as they are, :class:`Limits` saturates them, :class:`Formats` also rounds them.

Errors outside these formats are not simulated: reciprocals, roots and scales of the norm have a few
bits less in integers. ``tests/test_formats.py`` checks how close both models are.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.model.profile import S16, FixedPoint, NumericProfile
from sterna.model.torch.network.autocast import keeps_precision
from sterna.model.torch.network.recurrence import mlgru_scan, scan_sequential

__all__ = ["S16_LIMITS", "Formats", "Limits", "Numerics", "numerics_for", "round_to",
           "rounded_sigmoid"]


class Numerics:
    """Real numbers, neither limited nor rounded, for float models.

    Every method maps a tensor to one of the same shape and type, and may work in place.
    """

    z_limit: float = math.inf
    """Saturation limit of pre-activations, applied by the projection that computes them;
    :meth:`z` gets its result."""

    def x(self, stream: Tensor) -> Tensor:
        """The residual stream: the embedding, and the sum after each mixer."""
        return stream

    def z(self, projected: Tensor) -> Tensor:
        """Pre-activations, limited to :attr:`z_limit` by the projection."""
        return projected

    def sigmoid(self, z: Tensor) -> Tensor:
        """The sigmoid of pre-activations."""
        return torch.sigmoid(z)

    def silu(self, z: Tensor) -> Tensor:
        """``z * sigmoid(z)`` of the gate of a GLU, in the format of z."""
        return F.silu(z)

    def h(self, state: Tensor) -> Tensor:
        """Candidates for the recurrent state, and the resulting states."""
        return state

    def scan(self, forget: Tensor, candidate: Tensor, initial: Tensor) -> Tensor:
        """The states of the MLGRU recurrence, by
        :func:`~sterna.model.torch.network.recurrence.mlgru_scan` and :meth:`h`."""
        return self.h(mlgru_scan(forget, candidate, initial))

    def o(self, output: Tensor) -> Tensor:
        """The gated state of the MLGRU, before its last projection."""
        return output

    def p(self, product: Tensor) -> Tensor:
        """The hidden vector of a channel mixer, before its last projection."""
        return product

    def logit(self, logits: Tensor) -> Tensor:
        """The logits."""
        return logits

    def bias(self, bias: Tensor, *, output: str) -> Tensor:
        """The bias of a ternary projection with output ``"z"`` (pre-activations), ``"logit"``, or
        ``"x"`` (added to the residual stream). As it is a parameter, this never works in place."""
        return bias


class Limits(Numerics):
    """Residual stream, pre-activations and hidden vectors saturate as in a profile's formats.

    Saturated values pass no gradient. Nothing is rounded, which is harmless at 16 bits. States
    and outputs of the MLGRU need no limit, as both are below that of pre-activations; logits
    do not reach theirs in any useful model.
    """

    def __init__(self, profile: NumericProfile) -> None:
        self.profile = profile
        self.z_limit = profile.z.limit

    def x(self, stream: Tensor) -> Tensor:
        return F.hardtanh_(stream, -self.profile.x.limit, self.profile.x.limit)

    def p(self, product: Tensor) -> Tensor:
        return F.hardtanh_(product, -self.profile.p.limit, self.profile.p.limit)


S16_LIMITS = Limits(S16)
"""Default of ternary models."""


_FINE_BITS = 16
"""Formats of at least this many bits are not simulated: another training seed changes more."""


def numerics_for(profile: NumericProfile) -> Limits:
    """The numerics to train with for a profile: only its limits if all formats have 16 bits or
    more, else its formats."""
    forms = (profile.x, profile.z, profile.h, profile.o, profile.p, profile.logit)
    return Limits(profile) if min(each.bits for each in forms) >= _FINE_BITS else Formats(profile)


class _RoundTo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, form: FixedPoint) -> Tensor:
        half = values.new_full((), 0.5)
        result = torch.add(half, values, alpha=2.0**form.frac).floor_()
        result.clamp_(form.min, form.max).mul_(2.0**-form.frac)
        ctx.save_for_backward(result)
        ctx.form = form
        return result

    @staticmethod
    @keeps_precision
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (result,) = ctx.saved_tensors
        form, step = ctx.form, 2.0**-ctx.form.frac
        return torch.ops.aten.hardtanh_backward(
            grad, result, form.min * step, form.max * step), None


@keeps_precision
def round_to(values: Tensor, form: FixedPoint) -> Tensor:
    """Round to a format, halves up, and saturate.

    Gradients pass straight through the rounding; values at either end of the format count as
    saturated and pass none.

    >>> round_to(torch.tensor([0.3, -0.125, 0.125, 9.0]), FixedPoint(bits=6, frac=2))
    tensor([0.2500, 0.0000, 0.2500, 7.7500])
    """
    result: Tensor = _RoundTo.apply(values, form)
    return result


class _RoundedSigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, profile: NumericProfile, table: Tensor) -> Tensor:
        unit = 2.0**-profile.sigmoid_frac
        if profile.sigmoid_step_bits == 0:
            result = torch.sigmoid(z).div_(unit).add_(0.5).floor_().clamp_(
                max=profile.sigmoid_max)
        else:
            at = (z + profile.z.limit).mul_(0.5 * profile.sigmoid_segments / profile.z.limit)
            segment = at.floor().clamp_(0, profile.sigmoid_segments - 1)
            index = segment.long()
            low = table.to(z)[index]
            rise = table.to(z)[index + 1] - low
            result = rise.mul_(at.sub_(segment)).add_(0.5).floor_().add_(low)
        ctx.save_for_backward(result.mul_(unit))
        return result

    @staticmethod
    @keeps_precision
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return torch.ops.aten.sigmoid_backward(grad, *ctx.saved_tensors), None, None


@keeps_precision
def rounded_sigmoid(z: Tensor, profile: NumericProfile, table: Tensor) -> Tensor:
    """The sigmoid of the integer model, in multiples of ``2**-sigmoid_frac``, of pre-activations
    rounded to the profile's ``z`` format; the gradient is that of the sigmoid at this value.
    ``table`` is ``profile.sigmoid_table()`` for interpolation; a sigmoid that is only indexed does
    not use it."""
    result: Tensor = _RoundedSigmoid.apply(z, profile, table)
    return result


class Formats(Limits):
    """Values are rounded to the formats of a profile where the integer model rounds them; sigmoids
    use its table, and states are rounded at every step."""

    def __init__(self, profile: NumericProfile) -> None:
        super().__init__(profile)
        self._table = torch.tensor(profile.sigmoid_table())
        for name in ("x", "z", "h", "o", "p", "logit"):     # in the formats of these names
            setattr(self, name, partial(round_to, form=getattr(profile, name)))

    def sigmoid(self, z: Tensor) -> Tensor:
        return rounded_sigmoid(z, self.profile, self._table)

    def silu(self, z: Tensor) -> Tensor:
        return round_to(z * self.sigmoid(z), self.profile.z)

    def scan(self, forget: Tensor, candidate: Tensor, initial: Tensor) -> Tensor:
        return scan_sequential(forget, candidate, initial, self.profile.h)

    def bias(self, bias: Tensor, *, output: str) -> Tensor:
        """In the format of the output plus one bit, so that it can saturate on its own."""
        form = getattr(self.profile, output)
        return round_to(bias, FixedPoint(form.bits + 1, form.frac))
