"""Numeric profiles: the width and scale of every integer in the model.

A profile names every fixed-point format of the integer model and derives every shift,
range and table from them, once. The integer reference, the ONNX graphs and the gateware
read these properties and never recompute them.

Bounds that hold for every profile are properties here (``*_max``), each with its proof;
``tests/test_profile.py`` and ``tests/test_integer_ranges.py`` try to break them.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from sterna.model.checks import check_fields, check_whole

__all__ = [
    "C12", "PROFILES", "S16", "FixedPoint", "NumericProfile", "mantissa_and_shift", "profile_of",
    "sigmoid_table"]


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """A signed two's complement format: ``bits`` in total, ``frac`` after the point.

    >>> FixedPoint(12, 7).limit     # the range is -16.0 <= value < 16.0
    16.0
    """

    bits: int
    frac: int

    def __post_init__(self) -> None:
        check_whole("bits", self.bits, 2, 24)
        check_whole("frac", self.frac, 0, 32)

    @property
    def min(self) -> int:
        """Smallest integer of the format."""
        return -(1 << (self.bits - 1))

    @property
    def max(self) -> int:
        """Largest integer of the format."""
        return (1 << (self.bits - 1)) - 1

    @property
    def limit(self) -> float:
        """Real value at which the format saturates."""
        return float(math.ldexp(1.0, self.bits - 1 - self.frac))


_FORMATS = ("x", "z", "h", "o", "p", "logit")
"""The format fields of a profile."""


@dataclass(frozen=True, slots=True)
class NumericProfile:
    """Every format of the integer model, and the values derived from them.

    Raises ValueError if the formats contradict each other or break a proof in docs/numerics.md:
    ``reciprocal_bits`` below the widest of x, o and p, or above 24; ``root_frac`` above 10, which
    could take ``isqrt`` past 2^52; ``MA`` below ``MK - 1``, where rounding could give an A of 2^MA;
    segments that are not a power of two or exceed the number of values of z; a negative shift;
    different real ranges of ``h`` and ``z``; ``z`` beyond ±512; a number of bits that is not a
    whole number in its range.

    Parameters
    ----------
    name
        Name of the profile.
    x, z, h, o, p, logit
        Formats of the residual stream, the pre-activations, the recurrent state, the
        MLGRU output, the GLU product and the logits.
    reciprocal_bits
        ``k``: the reciprocal of the absolute maximum is ``R = (127 << k) // m``.
    root_frac
        ``t``: fraction bits of the root of the sum of squares.
    scale_frac
        ``P``: fraction bits of the norm's output scale ``V = (127 << (P + t)) // N``.
    mantissa_bits, scale_bits
        ``MK``, ``MA``: width of a projection's weight-scale mantissa ``K`` and of the
        combined scale ``A = rs(V * K, P + MK - MA)``.
    sigmoid_frac
        ``Ff``: fraction bits of a sigmoid.
    sigmoid_segments
        Segments of the sigmoid table over the whole range of ``z``. One per value of
        ``z`` is a directly indexed table; fewer interpolate linearly.
    """

    name: str
    x: FixedPoint
    z: FixedPoint
    h: FixedPoint
    o: FixedPoint
    p: FixedPoint
    logit: FixedPoint
    reciprocal_bits: int
    root_frac: int
    scale_frac: int
    mantissa_bits: int
    scale_bits: int
    sigmoid_frac: int
    sigmoid_segments: int
    act_bits: ClassVar[int] = 8
    max_shift: ClassVar[int] = 40

    def __post_init__(self) -> None:
        for name in _FORMATS:
            if not isinstance(getattr(self, name), FixedPoint):
                raise ValueError(f"{name} must be a FixedPoint, got {getattr(self, name)!r}")
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"name must be text, got {self.name!r}")
        for name, low, high in (
            ("reciprocal_bits", 2, 24), ("root_frac", 0, 10), ("scale_frac", 8, 24),
            ("mantissa_bits", 4, 24), ("scale_bits", 8, 24), ("sigmoid_frac", 1, 24),
            ("sigmoid_segments", 2, 1 << 24),
        ):
            check_whole(name, getattr(self, name), low, high)
        widest = max(self.x.bits, self.o.bits, self.p.bits)
        if not widest <= self.reciprocal_bits <= 24:
            # With m <= 2^(k-1) the largest element quantises to exactly 127.
            raise ValueError(
                f"reciprocal_bits must be from {widest} (the widest normalised vector) "
                f"to 24 (y*R stays in 32 bits), got {self.reciprocal_bits}")
        if self.sigmoid_segments & (self.sigmoid_segments - 1) or self.sigmoid_index_bits < 1:
            raise ValueError(
                f"sigmoid_segments must be a power of two from 2, got {self.sigmoid_segments}")
        if self.sigmoid_index_bits > self.z.bits:
            raise ValueError(
                f"sigmoid_segments ({self.sigmoid_segments}) must be at most one for each "
                f"value of z ({1 << self.z.bits})")
        if not self.mantissa_bits - 1 <= self.scale_bits <= self.mantissa_bits + self.scale_frac:
            # One bit fewer and rounding up could give A = 2^MA, which does not fit.
            raise ValueError(
                f"scale_bits must be from mantissa_bits - 1 ({self.mantissa_bits - 1}) to "
                f"mantissa_bits + scale_frac ({self.mantissa_bits + self.scale_frac}), "
                f"got {self.scale_bits}")
        for name, shift in (
            ("candidate_shift", self.candidate_shift), ("output_shift", self.output_shift),
            ("product_shift", self.product_shift),
        ):
            if shift < 0:
                raise ValueError(f"the formats give a negative {name} ({shift})")
        if self.z.limit > 512:
            raise ValueError(
                "z must end at 512 or below: by then a sigmoid has long been 0 or 1; "
                f"got {self.z.bits} bits with {self.z.frac} after the point")
        if self.h.limit != self.z.limit:
            # |c| = |z * sigmoid(z)| < |z|, and h is a convex combination of c.
            raise ValueError("h must have the real range of z, so that a candidate fits")

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> NumericProfile:
        """Undo ``dataclasses.asdict``.

        Raises ValueError if a field is missing, unknown or out of range.
        """
        check_fields("profile", fields, (each.name for each in dataclasses.fields(cls)))
        values = dict(fields)
        for name in _FORMATS:
            check_fields(f"profile.{name}", values[name],
                         (each.name for each in dataclasses.fields(FixedPoint)))
            values[name] = FixedPoint(**values[name])
        return cls(**values)

    # Sigmoid table -----------------------------------------------------------------

    @property
    def sigmoid_index_bits(self) -> int:
        """Bits of z (from the top, sign inverted) that select a segment."""
        return self.sigmoid_segments.bit_length() - 1

    @property
    def sigmoid_step_bits(self) -> int:
        """Bits of z below the segment index; 0 means a directly indexed table."""
        return self.z.bits - self.sigmoid_index_bits

    @property
    def sigmoid_max(self) -> int:
        """Largest table entry: 1 - 2^-Ff, so that a gate never needs Ff + 1 bits."""
        return (1 << self.sigmoid_frac) - 1

    def sigmoid_table(self) -> list[int]:
        """Return the sigmoid at every segment boundary, rounded half up to Ff bits.

        One entry per segment, and one more at the upper end if the table is
        interpolated. This is a definition: the quantised file stores the integers.
        """
        return sigmoid_table(self.z, self.sigmoid_frac, self.sigmoid_segments)

    # Shifts (all static) -----------------------------------------------------------

    @property
    def combine_shift(self) -> int:
        """Shift of ``A = rs(V * K, combine_shift)``."""
        return self.scale_frac + self.mantissa_bits - self.scale_bits

    @property
    def candidate_shift(self) -> int:
        """Shift of ``c = sat(rs(zc * sigmoid(zc), candidate_shift))``."""
        return self.z.frac + self.sigmoid_frac - self.h.frac

    @property
    def output_shift(self) -> int:
        """Shift of ``o = sat(rs(g * h, output_shift))``."""
        return self.sigmoid_frac + self.h.frac - self.o.frac

    @property
    def product_shift(self) -> int:
        """Shift of ``p = sat(rs(silu(gate) * up, product_shift))``."""
        return 2 * self.z.frac - self.p.frac

    # Outputs of the projections ----------------------------------------------------

    def output_format(self, projection: str) -> FixedPoint:
        """Format of the value that a projection adds to or replaces: z, x (out, down) or logit."""
        part = projection.rsplit(".", 1)[-1]
        return {"out": self.x, "down": self.x, "head": self.logit}.get(part, self.z)

    def bias_bits(self, projection: str) -> int:
        """Width of a bias: one bit more than the output, so that a bias alone can saturate it."""
        return self.output_format(projection).bits + 1

    def quantize_scale(self, scale: float) -> tuple[int, int]:
        """Return ``(k, shift)`` for a projection whose real scale is ``scale``.

        ``scale`` is the factor from ``acc * V / 2^P`` to the integers of the output:
        ``s_w * sqrt(columns) / 127 * 2^frac``. k is normalised to use all of its bits, and
        ``k * 2^(-shift)`` with ``A``'s truncation gives the scale back. Raises ValueError if the
        scale is not positive or needs a shift outside 1 to ``max_shift``.

        >>> S16.quantize_scale(1.0)
        (32768, 15)
        """
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"a projection's scale must be positive and finite, got {scale}")
        return mantissa_and_shift(scale, self.mantissa_bits, self.scale_bits)

    # Bounds ------------------------------------------------------------------------

    @property
    def norm_scale_max(self) -> int:
        """Largest V: the smallest N is 127 << t, so V is at most 1 << P."""
        return 1 << self.scale_frac

    @property
    def combined_scale_max(self) -> int:
        """Largest A. V <= 2^P and K < 2^MK, so A <= (2^MK - 1) * 2^P >> (P + MK - MA)."""
        biggest = ((1 << self.mantissa_bits) - 1) << self.scale_frac
        shift = self.combine_shift
        return (biggest + ((1 << shift) >> 1)) >> shift


def sigmoid_table(z: FixedPoint, frac: int, segments: int) -> list[int]:
    """Return the sigmoid at the boundaries of segments over the whole range of ``z``, rounded half
    up to ``frac`` bits and below 1.

    One entry per segment, and one more at the upper end if the table is interpolated, that is, if
    z has more values than segments.
    """
    entries = segments + (1 if segments < 1 << z.bits else 0)
    table = []
    for i in range(entries):
        value = -z.limit + i * 2 * z.limit / segments
        exact = 1.0 / (1.0 + math.exp(-value))
        table.append(min(math.floor(exact * (1 << frac) + 0.5), (1 << frac) - 1))
    return table


def mantissa_and_shift(scale: float, mantissa_bits: int, scale_bits: int) -> tuple[int, int]:
    """Return ``(k, shift)``: ``k`` uses all of its bits, and ``k * 2**(scale_bits - mantissa_bits)
    * 2**-shift`` is closest to ``scale``, which is positive and finite.

    Raises ValueError if the shift is outside 1 to ``NumericProfile.max_shift``.

    >>> mantissa_and_shift(0.5, 16, 16)
    (32768, 16)
    """
    exponent = math.frexp(scale)[1]
    k = math.floor(math.ldexp(scale, mantissa_bits - exponent) + 0.5)
    if k == 1 << mantissa_bits:
        k, exponent = k >> 1, exponent + 1
    shift = scale_bits - exponent
    if not 1 <= shift <= NumericProfile.max_shift:
        low = 2.0 ** (scale_bits - NumericProfile.max_shift - 1)
        raise ValueError(
            f"a projection's scale must be from about {low:g} to below "
            f"{2.0 ** (scale_bits - 1):g}, got {scale:g}")
    return k, shift


S16 = NumericProfile(
    name="S16",
    x=FixedPoint(16, 11), z=FixedPoint(16, 12), h=FixedPoint(16, 12), o=FixedPoint(16, 12),
    p=FixedPoint(16, 10), logit=FixedPoint(16, 8),
    reciprocal_bits=24, root_frac=4, scale_frac=16, mantissa_bits=16, scale_bits=16,
    sigmoid_frac=15, sigmoid_segments=64,
)
"""The safe default: every vector in 16 bits, a sigmoid interpolated between 65 entries."""

C12 = NumericProfile(
    name="C12",
    x=FixedPoint(12, 7), z=FixedPoint(8, 4), h=FixedPoint(12, 8), o=FixedPoint(10, 6),
    p=FixedPoint(10, 4), logit=FixedPoint(16, 8),
    reciprocal_bits=16, root_frac=2, scale_frac=14, mantissa_bits=12, scale_bits=14,
    sigmoid_frac=8, sigmoid_segments=256,
)
"""The compact profile: 12-bit residual and state, 8-bit pre-activations that index the
sigmoid's 256 bytes directly."""

PROFILES = {profile.name: profile for profile in (S16, C12)}
"""The profiles by name."""


def profile_of(profile: NumericProfile | str) -> NumericProfile:
    """The profile itself, or the one with this name.

    Raises ValueError if it is neither.
    """
    if isinstance(profile, NumericProfile):
        return profile
    if not isinstance(profile, str) or profile not in PROFILES:
        raise ValueError(
            f"profile must be a NumericProfile or one of {', '.join(PROFILES)}, got {profile!r}")
    return PROFILES[profile]
