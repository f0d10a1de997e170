"""Widths and latencies of the norm."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from sterna.hw.parts.digit_serial import ConstantDividerParams, IntegerRootParams
from sterna.hw.parts.reciprocal_table import ReciprocalTableParams
from sterna.model.checks import check_whole
from sterna.model.profile import NumericProfile

__all__ = ["NormParams"]


@dataclass(frozen=True, slots=True)
class NormParams:
    """Formats of a :class:`~sterna.hw.core.compute.norm.Norm`; symbols as in
    ``docs/numerics.md``.

    >>> from sterna.model.profile import S16
    >>> params = NormParams(S16, channels=128)
    >>> params.y_bits, params.low_bits, params.r_bits, params.root.latency
    (16, 17, 31, 7)
    """

    profile: NumericProfile  #: formats of every number
    channels: int  #: channels of the longest vector
    divides: bool = False  #: a bit per cycle; otherwise one table gives both quotients
    root_digit_bits: int = 2  #: bits per cycle of the root

    def __post_init__(self) -> None:
        check_whole("channels", self.channels, 1, 1 << 20)
        check_whole("root_digit_bits", self.root_digit_bits, 1, 4)

    # Widths ------------------------------------------------------------------------

    @property
    def y_bits(self) -> int:
        """Signed bits of an element: those of the widest normalised vector. As many unsigned bits
        hold the absolute maximum, 2^(y_bits - 1) at most.
        """
        profile = self.profile
        return max(profile.x.bits, profile.o.bits, profile.p.bits)

    @property
    def square_bits(self) -> int:
        """Unsigned bits of q * q: |q| is at most 127."""
        return (127 * 127).bit_length()

    @property
    def sum_max(self) -> int:
        """Largest S, of a vector with all elements equal."""
        return 127 * 127 * self.channels

    @property
    def sum_bits(self) -> int:
        """Unsigned bits of S."""
        return self.sum_max.bit_length()

    @property
    def norm_min(self) -> int:
        """Smallest N: the largest element always becomes 127."""
        return 127 << self.profile.root_frac

    @property
    def norm_bits(self) -> int:
        """Unsigned bits of N, the root."""
        return self.root.root_bits

    @property
    def norm_max(self) -> int:
        """Largest N."""
        return isqrt(self.sum_max << 2 * self.profile.root_frac)

    @property
    def scale_bits(self) -> int:
        """Unsigned bits of V, which is at most ``1 << scale_frac``."""
        return self.profile.norm_scale_max.bit_length()

    @property
    def r_bits(self) -> int:
        """Unsigned bits of R."""
        return (127 << self.profile.reciprocal_bits).bit_length()

    @property
    def low_bits(self) -> int:
        """Low bits of R in the first factor: as many as a multiplier takes. The others, if any,
        are a second factor.
        """
        return min(self.r_bits, 17)

    # Parts -------------------------------------------------------------------------

    @property
    def table(self) -> ReciprocalTableParams:
        """The table that gives R and V, unless it ``divides``."""
        profile = self.profile
        return ReciprocalTableParams(
            max(profile.reciprocal_bits, profile.scale_frac + profile.root_frac),
            max(1 << (self.y_bits - 1), self.norm_max, self.norm_min))

    @property
    def reciprocal(self) -> ConstantDividerParams:
        """The divider that gives R from the absolute maximum, if it ``divides``."""
        return ConstantDividerParams(self.profile.reciprocal_bits, self.y_bits)

    @property
    def root(self) -> IntegerRootParams:
        """The root that gives N."""
        return IntegerRootParams(self.sum_bits, self.profile.root_frac, self.root_digit_bits)

    @property
    def scale(self) -> ConstantDividerParams:
        """The divider that gives V, if it ``divides``. N is never below the head, so there are
        ``scale_frac + 1`` quotient bits."""
        return ConstantDividerParams(
            self.profile.scale_frac, self.norm_bits, self.norm_min, self.norm_min)

    @property
    def reciprocal_steps(self) -> int:
        """Cycles from the maximum until R is known."""
        return self.reciprocal.latency if self.divides else self.table.latency

    @property
    def quotient_steps(self) -> int:
        """Cycles from N until V is known."""
        return self.scale.latency if self.divides else self.table.latency
