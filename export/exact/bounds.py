"""Proof that float64 carries every integer of the exact graph.

The graph holds whole numbers, and whole numbers divided by a power of two, in float64. A
value ``n / 2**s`` is exact while ``|n| < 2**53``; the checks here ask for one bit less,
so that adding the half that rounds is covered, and so is the root, whose floor is exact
only below 2**52. Quotients need no more: the floor of a correctly rounded ``a / b`` is
that of the true quotient while ``a < 2**52``.
"""

from __future__ import annotations

from collections.abc import Mapping

from sterna.model.profile import FixedPoint, NumericProfile
from sterna.model.quantized import Projection, QuantizedModel

__all__ = ["CARRIER_BITS", "MOST_COLUMNS", "check_bounds", "check_carried", "folds_biases",
           "glu_bounds", "largest_columns", "mlgru_bounds", "norm_bounds", "projection_bounds",
           "tensor_bounds"]

CARRIER_BITS = 52
MOST_COLUMNS = ((1 << 31) - 1) // 255
"""The most columns whose dot product fits the 32-bit accumulator of ``MatMulInteger``, which
takes activations from 0 to 255."""


def _reach(fmt: FixedPoint) -> int:
    """Largest magnitude of a format (its most negative number)."""
    return -fmt.min


def _half(shift: int) -> int:
    """What ``rs`` adds before it shifts."""
    return (1 << shift) >> 1


def norm_bounds(profile: NumericProfile, norm: str, columns: int) -> dict[str, int]:
    """Bounds of the tensors of a norm and quantisation of so many values."""
    k, t = profile.reciprocal_bits, profile.root_frac
    return {
        # |y| <= m and R <= (127 << k) / m, so |y * R| <= 127 << k.
        f"{norm}.q": (127 << k) + _half(k),
        f"{norm}.s": _square_sum(profile, columns),
        f"{norm}.v": 127 << (profile.scale_frac + t),
    }


def projection_bounds(
    profile: NumericProfile, name: str, projection: Projection, bias: int,
) -> dict[str, int]:
    """Bounds of the tensors of a projection whose biases reach up to ``bias``."""
    k_max = (1 << profile.mantissa_bits) - 1
    shift, columns = projection.shift, projection.weight.shape[1]
    product = profile.accumulator_max(columns) * profile.combined_scale_max + _half(shift)
    return {
        f"{name}.a": profile.norm_scale_max * k_max + _half(profile.combine_shift),
        f"{name}.z": max(product, (product >> shift) + 1 + bias),
    }


def mlgru_bounds(profile: NumericProfile, at: str) -> dict[str, int]:
    """Bounds of the tensors of an MLGRU between its projections."""
    gate, z, h = profile.sigmoid_max, _reach(profile.z), _reach(profile.h)
    return {
        f"{at}.f.sigmoid": _sigmoid(profile),
        f"{at}.g.sigmoid": _sigmoid(profile),
        f"{at}.c.silu": max(_sigmoid(profile), z * gate + _half(profile.candidate_shift)),
        # |h - c| < 2**bits, and f is taken as a fraction of Ff bits.
        f"{at}.h": gate * 2 * h + _half(profile.sigmoid_frac),
        f"{at}.o": gate * h + _half(profile.output_shift),
    }


def glu_bounds(profile: NumericProfile, at: str) -> dict[str, int]:
    """Bounds of the tensors of a GLU between its projections."""
    gate, z = profile.sigmoid_max, _reach(profile.z)
    return {
        f"{at}.gate.silu": max(_sigmoid(profile), z * gate + _half(profile.sigmoid_frac)),
        # |silu(gate)| <= |gate|.
        f"{at}.p": z * z + _half(profile.product_shift),
    }


def _sigmoid(profile: NumericProfile) -> int:
    step = profile.sigmoid_step_bits
    return (profile.sigmoid_max << step) + _half(step)


def _square_sum(profile: NumericProfile, columns: int) -> int:
    return (127 * 127 * columns) << (2 * profile.root_frac)


def largest_columns(profile: NumericProfile) -> int:
    """The most columns of a matrix behind a norm for which every graph is exact.

    >>> from sterna.model.profile import S16
    >>> largest_columns(S16)
    8421504
    """
    limit = (1 << CARRIER_BITS) - 1
    product = limit - _half(profile.max_shift)
    return min(MOST_COLUMNS, limit // _square_sum(profile, 1),
               product // (profile.accumulator_max(1) * profile.combined_scale_max))


def tensor_bounds(model: QuantizedModel) -> dict[str, int]:
    """Bound every tensor of the exact graph of ``model``.

    Returns ``{tap name: magnitude}``: the largest whole number that float64 has to hold
    on the way to that tensor, counted in units of its last fraction bit. It follows from
    the shape, the formats and the shifts alone, so it holds for every input.
    """
    config, profile = model.config, model.profile
    bounds: dict[str, int] = {}
    norms = {
        config.norm_of(name): columns for name, (_, columns) in config.projections().items()}
    for norm, columns in norms.items():
        bounds |= norm_bounds(profile, norm, columns)
    for name, projection in model.projections.items():
        bias = 1 << (profile.bias_bits(name) - 1)
        bounds |= projection_bounds(profile, name, projection, bias)
    for layer in range(config.layers):
        mlgru, glu = f"layer{layer}.mlgru", f"layer{layer}.glu"
        bounds |= mlgru_bounds(profile, mlgru)
        bounds[f"{mlgru}.x"] = _reach(profile.x) + bounds[f"{mlgru}.out.z"]
        bounds |= glu_bounds(profile, glu)
        bounds[f"{glu}.x"] = _reach(profile.x) + bounds[f"{glu}.down.z"]
    return bounds


def check_bounds(model: QuantizedModel) -> None:
    """Check that the exact graph of ``model`` cannot lose a bit.

    Raises ValueError if a tensor could leave the exact range of float64, or a dot product that of
    the 32-bit accumulator of ``MatMulInteger`` (its operands are 0 to 255 and -1 to 1).
    """
    check_carried(tensor_bounds(model), model.profile)
    for name, (_, columns) in model.config.projections().items():
        if columns > MOST_COLUMNS:
            raise ValueError(
                f"{name}: a dot product of {columns} columns does not fit the 32-bit "
                f"accumulator of MatMulInteger")


def check_carried(bounds: Mapping[str, int], profile: NumericProfile) -> None:
    """Check that float64 carries tensors with these bounds.

    Raises ValueError if one reaches ``2**52``.
    """
    for name, bound in bounds.items():
        if bound >= 1 << CARRIER_BITS:
            raise ValueError(
                f"{name}: profile {profile.name} at this shape needs whole numbers up "
                f"to 2^{bound.bit_length()}, but the exact ONNX form carries them in float64 "
                f"and needs them below 2^{CARRIER_BITS}")


def folds_biases(model: QuantizedModel) -> bool:
    """Whether ``acc * A * 2^-shift + bias + 1/2 + x`` is exact before its floor is taken.

    It is unless a shift is so large that the fraction and the bias together pass float64,
    which takes 36 bits or more; trained models have 9 to 14.
    """
    profile = model.profile
    for name, (_, columns) in model.config.projections().items():
        shift = model.projections[name].shift
        product = profile.accumulator_max(columns) * profile.combined_scale_max
        added = (1 << (profile.bias_bits(name) - 1)) + _reach(profile.x) + 1
        if product + (added << shift) >= 1 << CARRIER_BITS:
            return False
    return True
