"""Proof that float64 represents every integer of a model exactly, from its records alone.

The exact ONNX graphs hold whole numbers, and whole numbers divided by a power of two, in float64;
the integer reference takes roots in it. A value ``n / 2**s`` is exact while ``|n| < 2**53``; the
checks here require one bit less, which covers adding the rounding half, and the root, with a floor
that is exact only below 2**52. Quotients need no more: the floor of a correctly rounded ``a / b``
is that of the true quotient while ``a < 2**52``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from sterna.model.profile import FixedPoint
from sterna.model.quantized.records import (
    Add,
    Embedding,
    Energy,
    Input,
    Multiply,
    Narrow,
    Norm,
    Project,
    Projection,
    Quantize,
    Record,
    Recur,
    Root,
    Scale,
    Sigmoid,
)

__all__ = ["CARRIER_BITS", "MOST_COLUMNS", "check_bounds", "folds_bias", "tensor_bounds"]

CARRIER_BITS = 52
MOST_COLUMNS = ((1 << 31) - 1) // 255
"""Most columns of a dot product that fits the 32-bit accumulator of ``MatMulInteger``, which takes
activations from 0 to 255."""


def _reach(fmt: FixedPoint) -> int:
    """Largest magnitude of a format (its most negative number)."""
    return -fmt.min


def _half(shift: int) -> int:
    """The rounding half that ``rs`` adds before it shifts."""
    return (1 << shift) >> 1


def _shifted(magnitude: int, shift: int) -> int:
    """The largest intermediate whole number of ``rs(value, shift)``."""
    return magnitude << -shift if shift <= 0 else magnitude + _half(shift)


def tensor_bounds(
    records: Sequence[Record], projections: Mapping[str, Projection],
    given: Mapping[str, int] = MappingProxyType({}),
    vectors: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> dict[str, int]:
    """Bound every tensor of these records.

    ``given`` are the largest magnitudes of values that no record gives, ``vectors`` the stored ones
    of :class:`Scale` and :class:`Input`. Returns ``{tap name: magnitude}``: the largest whole
    number that float64 must hold to compute that tensor, in units of its last fraction bit. It
    follows from formats and shifts alone, so it holds for every input.
    """
    bounds: dict[str, int] = {}
    reach = dict(given)  # of a value after rounding and saturation
    for record in records:
        match record:
            case Embedding():
                reach[record.name] = _reach(record.output)
            case Input(name, x):
                bounds[name] = max(
                    _shifted(reach[x] + abs(int(offset)), int(shift)) for offset, shift in zip(
                        vectors[f"{name}.offset"], vectors[f"{name}.shift"], strict=True))
                reach[name] = _reach(record.output)
            case Narrow(name, x):
                bounds[name] = _shifted(reach[x], record.shift)
                reach[name] = _reach(record.output)
            case Scale(name, x):
                largest = int(np.abs(vectors[name].astype(np.int64)).max())
                bounds[name] = _shifted(reach[x] * largest, record.shift)
                reach[name] = _reach(record.output)
            case Energy(name, x):
                bounds[name] = _shifted(
                    reach[x] ** 2 * record.width * record.mantissa, record.shift)
                reach[name] = (bounds[name] >> max(record.shift, 0)) + 1
            case Root(name, x):
                extra = 0 if record.extra is None else reach[record.extra]
                bounds[f"{name}.s"] = (reach[x] ** 2 * record.width + record.epsilon + extra) << (
                    2 * record.root_frac)
            case Quantize(name, x, _, _, k):
                bounds[f"{name}.q"] = (127 << k) + _half(k)
                # m << shift has the digits of m; if it exceeds 2^52, the quotient exceeds any
                # scale, because no root reaches 2^26.
                bounds[f"{name}.v"] = max(reach[x], 1 << record.scale_frac)
            case Norm(name, _, columns, k, t, scale_frac):
                # |y| <= m and R <= (127 << k) / m, so |y * R| <= 127 << k.
                bounds[f"{name}.q"] = (127 << k) + _half(k)
                bounds[f"{name}.s"] = (127 * 127 * columns) << (2 * t)
                bounds[f"{name}.v"] = 127 << (scale_frac + t)
            case Project(name):
                bounds |= _projected(record, projections[name])
                reach[f"{name}.z"] = (
                    _reach(record.output) if record.saturates else bounds[f"{name}.z"])
            case Sigmoid(name):
                reach[name], step = (1 << record.frac) - 1, record.step_bits
                bounds[name] = (reach[name] << step) + _half(step)
            case Recur(name, gate):
                # |h - c| < 2**bits, and the gate is a fraction.
                h = _reach(record.output)
                bounds[name] = reach[gate] * 2 * h + _half(record.frac)
                reach[name] = h
            case Multiply(name, x, y):
                bounds[name] = reach[x] * reach[y] + _half(record.shift)
                reach[name] = _reach(record.output)
            case Add(name, x, y):
                bounds[name] = reach[x] + reach[y]
                reach[name] = _reach(record.output) if record.saturates else bounds[name]
    return bounds


def _projected(record: Project, own: Projection) -> dict[str, int]:
    """Bounds of a projection's tensors for any weights and biases."""
    product = 127 * record.columns * _combined(record) + _half(own.shift)
    # A bias has one bit more than the output.
    return {
        f"{record.name}.a": _unshifted(record),
        f"{record.name}.z": max(
            product, (product >> own.shift) + 1 + (1 << record.output.bits)),
    }


def _unshifted(record: Project) -> int:
    """The largest ``V * K`` plus the rounding half: V <= 2^P, K < 2^MK."""
    return (((1 << record.mantissa_bits) - 1) << record.scale_frac) + _half(record.combine_shift)


def _combined(record: Project) -> int:
    """The largest A."""
    return _unshifted(record) >> record.combine_shift


def check_bounds(
    records: Sequence[Record], projections: Mapping[str, Projection],
    given: Mapping[str, int] = MappingProxyType({}),
    vectors: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> dict[str, int]:
    """Check that these records cannot lose a bit; return the bounds.

    Raises ValueError if a tensor could exceed the exact range of float64, or a dot product that of
    the 32-bit accumulator of ``MatMulInteger`` (its operands are 0 to 255 and -1 to 1).
    """
    for record in records:
        if isinstance(record, Project) and record.columns > MOST_COLUMNS:
            raise ValueError(
                f"{record.name}: the graph is exact for matrices of up to {MOST_COLUMNS:,} "
                f"columns, got {record.columns:,}")
    bounds = tensor_bounds(records, projections, given, vectors)
    for name, bound in bounds.items():
        if bound >= 1 << CARRIER_BITS:
            raise ValueError(
                f"{name}: these formats at this shape need whole numbers up to "
                f"2^{bound.bit_length()}, but float64 carries them and needs them below "
                f"2^{CARRIER_BITS}")
    return bounds


def folds_bias(record: Project, own: Projection) -> bool:
    """Whether ``acc * A * 2^-shift + bias + 1/2`` is exact before its floor is taken.

    It is unless the shift is so large that fraction and bias together exceed float64, which
    takes 36 bits or more; trained models have 9 to 14.
    """
    added = (1 << record.output.bits) + 1
    return 127 * record.columns * _combined(record) + (added << own.shift) < 1 << CARRIER_BITS
