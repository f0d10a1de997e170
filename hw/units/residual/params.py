"""Geometry and formats of the residual stream."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import signed
from amaranth.lib.data import ArrayLayout, StructLayout

from sterna.model.checks import check_whole
from sterna.model.profile import NumericProfile

__all__ = ["ResidualParams"]


@dataclass(frozen=True, slots=True)
class ResidualParams:
    """Geometry and formats of a residual adder.

    Parameters
    ----------
    profile
        Formats; ``profile.x`` is that of the vector.
    rows
        Channels taken per word.
    channels
        Length of the vector.
    spaced
        Whether the unit keeps the updates of a vector of one or two words apart. A core,
        whose vectors come at long intervals, does not need it.
    stalls
        Whether words may have to wait to be taken.

    Raises
    ------
    ValueError
        If a number is out of its range.

    >>> from sterna.model.profile import C12
    >>> params = ResidualParams(C12, rows=8, channels=130)
    >>> params.words, params.latency, params.update_bits
    (17, 2, 13)
    """

    profile: NumericProfile
    rows: int
    channels: int
    spaced: bool = True
    stalls: bool = True

    def __post_init__(self) -> None:
        check_whole("rows", self.rows, 1, 4096)
        check_whole("channels", self.channels, 1, 1 << 20)

    @property
    def words(self) -> int:
        """Words of a vector; the last is filled up with zeros."""
        return -(-self.channels // self.rows)

    @property
    def latency(self) -> int:
        """Steps from ``updates`` to ``words``: sum and saturation."""
        return 2

    @property
    def update_spacing(self) -> int:
        """Steps from one update taken to the next.

        An update needs what the one of its word in the vector before has left, three steps
        after it was taken.
        """
        return 3 if self.spaced and self.words < 3 else 1

    @property
    def memory_words(self) -> int:
        """Depth of the memory of x; none if the vector is so short that registers keep it."""
        return self.words if self.words > 5 else 0

    @property
    def update_bits(self) -> int:
        """Signed bits of an update: one more than x has.

        An update that is clamped to them before the sum changes no result. Let x have b
        bits, so ``-2^(b-1) <= x < 2^(b-1)``. An update of ``2^b - 1`` or more gives a sum
        of at least ``2^(b-1) - 1``, and one of ``-2^b`` or less a sum below ``-2^(b-1)``:
        both saturate to the same end of x as the clamped update, ``2^b - 1`` or ``-2^b``.
        """
        return self.profile.x.bits + 1

    @property
    def update_layout(self) -> StructLayout:
        """Payload of ``updates``."""
        return StructLayout({
            "y": ArrayLayout(signed(self.update_bits), self.rows),
            "load": 1,
        })

    @property
    def word_layout(self) -> StructLayout:
        """Payload of ``words``."""
        return StructLayout({
            "x": ArrayLayout(signed(self.profile.x.bits), self.rows),
            "last": 1,
        })
