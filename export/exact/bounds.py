"""Proof that float64 carries every integer of the exact graph.

The graph holds whole numbers, and whole numbers divided by a power of two, in float64. A
value ``n / 2**s`` is exact while ``|n| < 2**53``; what is asked for here is one bit less,
so that adding the half that rounds is covered, and so is the root, whose floor is exact
only below 2**52. Quotients need no more: the floor of a correctly rounded ``a / b`` is
that of the true quotient while ``a < 2**52``.
"""

from __future__ import annotations

from sterna.model.profile import FixedPoint, NumericProfile
from sterna.model.quantized import QuantizedModel

__all__ = ["CARRIER_BITS", "check_bounds", "folds_biases", "tensor_bounds"]

CARRIER_BITS = 52
_INT32_BITS = 31


def _reach(fmt: FixedPoint) -> int:
    """Largest magnitude of a format (its most negative number)."""
    return -fmt.min


def _half(shift: int) -> int:
    """What ``rs`` adds before it shifts."""
    return (1 << shift) >> 1


def _norm_bounds(profile: NumericProfile, columns: int) -> dict[str, int]:
    k, t = profile.reciprocal_bits, profile.root_frac
    return {
        # |y| <= m and R <= (127 << k) / m, so |y * R| <= 127 << k.
        "q": (127 << k) + _half(k),
        "s": (127 * 127 * columns) << (2 * t),
        "v": 127 << (profile.scale_frac + t),
    }


def _projection_bounds(profile: NumericProfile, name: str, columns: int, shift: int,
                       ) -> dict[str, int]:
    k_max = (1 << profile.mantissa_bits) - 1
    product = profile.accumulator_max(columns) * profile.combined_scale_max + _half(shift)
    bias = 1 << (profile.bias_bits(name) - 1)
    return {
        "a": profile.norm_scale_max * k_max + _half(profile.combine_shift),
        "z": max(product, (product >> shift) + 1 + bias),
    }


def tensor_bounds(model: QuantizedModel) -> dict[str, int]:
    """Bound every tensor of the exact graph of ``model``.

    Returns ``{tap name: magnitude}``: the largest whole number that float64 has to hold
    on the way to that tensor, counted in units of its last fraction bit. It follows from
    the shape, the formats and the shifts alone, so it holds for every input.
    """
    config, profile = model.config, model.profile
    gate = profile.sigmoid_max
    z, h = _reach(profile.z), _reach(profile.h)
    bounds: dict[str, int] = {}
    norms = {
        config.norm_of(name): columns for name, (_, columns) in config.projections().items()}
    for norm, columns in norms.items():
        for part, bound in _norm_bounds(profile, columns).items():
            bounds[f"{norm}.{part}"] = bound
    for name, (_, columns) in config.projections().items():
        shift = model.projections[name].shift
        for part, bound in _projection_bounds(profile, name, columns, shift).items():
            bounds[f"{name}.{part}"] = bound
    step = profile.sigmoid_step_bits
    sigmoid = (gate << step) + _half(step)
    for layer in range(config.layers):
        mlgru, glu = f"layer{layer}.mlgru", f"layer{layer}.glu"
        bounds |= {
            f"{mlgru}.f.sigmoid": sigmoid,
            f"{mlgru}.g.sigmoid": sigmoid,
            f"{mlgru}.c.silu": max(sigmoid, z * gate + _half(profile.candidate_shift)),
            # |h - c| < 2**bits, and f is taken as a fraction of Ff bits.
            f"{mlgru}.h": gate * 2 * h + _half(profile.sigmoid_frac),
            f"{mlgru}.o": gate * h + _half(profile.output_shift),
            f"{mlgru}.x": _reach(profile.x) + bounds[f"{mlgru}.out.z"],
            f"{glu}.gate.silu": max(sigmoid, z * gate + _half(profile.sigmoid_frac)),
            # |silu(gate)| <= |gate|.
            f"{glu}.p": z * z + _half(profile.product_shift),
            f"{glu}.x": _reach(profile.x) + bounds[f"{glu}.down.z"],
        }
    return bounds


def check_bounds(model: QuantizedModel) -> None:
    """Check that the exact graph of ``model`` cannot lose a bit.

    Raises
    ------
    ValueError
        If a tensor could leave the exact range of float64, or a dot product that of the
        32-bit accumulator of ``MatMulInteger`` (its operands are 0 to 255 and -1 to 1).
    """
    for name, bound in tensor_bounds(model).items():
        if bound >= 1 << CARRIER_BITS:
            raise ValueError(
                f"{name}: profile {model.profile.name} at this shape needs whole numbers up "
                f"to 2^{bound.bit_length()}, but the exact ONNX form carries them in float64 "
                f"and needs them below 2^{CARRIER_BITS}")
    for name, (_, columns) in model.config.projections().items():
        if 255 * columns >= 1 << _INT32_BITS:
            raise ValueError(
                f"{name}: a dot product of {columns} columns does not fit the 32-bit "
                f"accumulator of MatMulInteger")


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
