"""Which sequence a payload belongs to, where several are interleaved."""

from __future__ import annotations

from amaranth.hdl import Shape, unsigned

__all__ = ["Interleaved"]


class Interleaved:
    """Parameters of a unit that ``sequences`` sequences share."""

    __slots__ = ()
    sequences: int

    @property
    def sequence_bits(self) -> int:
        """Bits of the number of a sequence in a payload; none if there is one only."""
        return (self.sequences - 1).bit_length()

    @property
    def sequence_field(self) -> dict[str, Shape]:
        """The field ``sequence`` of a payload; none if there is one only."""
        return {"sequence": unsigned(self.sequence_bits)} if self.sequence_bits else {}
