"""Widths, depths and cycle counts of NormQuant."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import ClassVar

from amaranth.hdl import Shape, signed, unsigned
from amaranth.lib.data import ArrayLayout, StructLayout

from sterna.hw.parts.digit_serial import ConstantDividerParams, IntegerRootParams
from sterna.hw.parts.reciprocal_table import ReciprocalTableParams
from sterna.hw.parts.sequence import Interleaved
from sterna.model.checks import check_whole
from sterna.model.profile import NumericProfile

__all__ = ["MAX_DIGIT_BITS", "MAX_ROOT_DIGIT_BITS", "NormParams"]

MAX_DIGIT_BITS, MAX_ROOT_DIGIT_BITS = 5, 4
"""Most bits per cycle of a division, and of the root."""


@dataclass(frozen=True, slots=True)
class NormParams(Interleaved):
    """Geometry and formats of a NormQuant unit.

    A vector of n channels travels as ``words(n)`` words of ``rows`` channels, the last one
    filled up with zeros.

    >>> from sterna.model.profile import S16
    >>> params = NormParams(S16, rows=8, lanes=8, channels=128)
    >>> params.max_steps, params.first_chunk_steps, params.scale_steps
    (3, 9, 17)
    """

    profile: NumericProfile  # formats of every number
    rows: int  # channels per word
    # Elements quantised per cycle; a multiple of `rows`. Each takes a multiplier for `y * R`,
    # and another one if R has more than 17 bits; its square is made of LUTs.
    lanes: int
    channels: int  # channels of the longest vector
    sequences: int = 1  # independent sequences, each with a buffer of its own
    trace: bool = False  # whether `scales` carries the intermediate values too
    # bits per cycle of the two divisions; with 0 both quotients come from one table
    digit_bits: int = 0
    root_digit_bits: int = 2  # bits per cycle of the root

    read_steps: ClassVar[int] = 3  # from the address of a chunk: memory, register, elements
    idle_steps: ClassVar[int] = 1  # from a scale taken to the `service` of a vector that waits

    def __post_init__(self) -> None:
        check_whole("rows", self.rows, 1, 4096)
        check_whole("lanes", self.lanes, 1, 4096)
        if self.lanes % self.rows:
            raise ValueError(f"lanes ({self.lanes}) must be a multiple of rows ({self.rows})")
        check_whole("channels", self.channels, 1, 65536)
        check_whole("sequences", self.sequences, 1, 2)
        check_whole("digit_bits", self.digit_bits, 0, MAX_DIGIT_BITS)
        check_whole("root_digit_bits", self.root_digit_bits, 1, MAX_ROOT_DIGIT_BITS)

    # Shape -------------------------------------------------------------------------

    @property
    def banks(self) -> int:
        """Memories per sequence; a chunk is a word from each."""
        return self.lanes // self.rows

    def words(self, channels: int) -> int:
        return -(-channels // self.rows)

    def chunks(self, channels: int) -> int:
        """Chunks of a vector: its words, a word of every bank at a time."""
        return -(-self.words(channels) // self.banks)

    @property
    def depth(self) -> int:
        """Words of a memory: one without an address is no valid Verilog."""
        return max(self.chunks(self.channels), 2)

    # Widths ------------------------------------------------------------------------

    @property
    def y_bits(self) -> int:
        """Signed bits of an element: those of the widest vector that is normalised. As many
        unsigned bits hold the absolute maximum, 2^(y_bits - 1) at most.
        """
        profile = self.profile
        return max(profile.x.bits, profile.o.bits, profile.p.bits)

    @property
    def square_bits(self) -> int:
        """Unsigned bits of q * q: |q| is at most 127."""
        return (127 * 127).bit_length()

    @property
    def sum_max(self) -> int:
        """Largest S, of a vector whose elements are all equal."""
        return 127 * 127 * self.channels

    @property
    def sum_bits(self) -> int:
        return self.sum_max.bit_length()

    @property
    def norm_min(self) -> int:
        return 127 << self.profile.root_frac

    @property
    def norm_bits(self) -> int:
        """Unsigned bits of N, that is of the root."""
        return self.root.root_bits

    @property
    def norm_max(self) -> int:
        return isqrt(self.sum_max << 2 * self.profile.root_frac)

    @property
    def scale_bits(self) -> int:
        """Unsigned bits of V, which is at most ``1 << scale_frac``."""
        return self.profile.norm_scale_max.bit_length()

    @property
    def r_bits(self) -> int:
        return (127 << self.profile.reciprocal_bits).bit_length()

    @property
    def low_bits(self) -> int:
        """Low bits of R that are a factor of their own: as many as a multiplier takes. The
        others are a second factor, if there are any.
        """
        return min(self.r_bits, 17)

    @property
    def table(self) -> ReciprocalTableParams:
        """The table that gives R and V, without ``digit_bits``."""
        profile = self.profile
        return ReciprocalTableParams(
            max(profile.reciprocal_bits, profile.scale_frac + profile.root_frac),
            max(1 << (self.y_bits - 1), self.norm_max, self.norm_min))

    @property
    def reciprocal(self) -> ConstantDividerParams:
        """The divider that gives R from the absolute maximum, with ``digit_bits``."""
        return ConstantDividerParams(
            self.profile.reciprocal_bits, self.y_bits, digit_bits=self.digit_bits)

    @property
    def root(self) -> IntegerRootParams:
        return IntegerRootParams(self.sum_bits, self.profile.root_frac, self.root_digit_bits)

    @property
    def scale(self) -> ConstantDividerParams:
        """The divider that gives V, with ``digit_bits``. N is never below its head, so it
        takes ``scale_frac`` quotient bits and one."""
        return ConstantDividerParams(
            self.profile.scale_frac, self.norm_bits, head=self.norm_min,
            digit_bits=self.digit_bits, min_divisor=self.norm_min)

    # Cycles ------------------------------------------------------------------------

    @property
    def max_groups(self) -> list[int]:
        """How many magnitudes each step of the maximum leaves, the first one ``rows``. A step
        takes the largest of four; the last one, of at most four and the running maximum.
        """
        groups = [self.rows]
        while groups[-1] > 4:
            groups.append(-(-groups[-1] // 4))
        return groups

    @property
    def max_steps(self) -> int:
        """Cycles from the transfer of a vector's last word to ``service``, if it is free."""
        return 1 + len(self.max_groups)

    @property
    def reciprocal_steps(self) -> int:
        """Cycles from ``service`` until R is known."""
        return self.table.latency if self.digit_bits == 0 else self.reciprocal.latency

    @property
    def quotient_steps(self) -> int:
        """Cycles from N until V is known."""
        return self.table.latency if self.digit_bits == 0 else self.scale.latency

    @property
    def factor_steps(self) -> int:
        """Cycles from ``service`` until R and the first chunk are the factors."""
        return 1 + max(self.reciprocal_steps, self.read_steps)

    @property
    def first_chunk_steps(self) -> int:
        """Cycles from ``service`` to the first chunk: R, the factors, the products, their sum;
        it is rounded as it is offered.
        """
        return self.factor_steps + 2

    @property
    def tree_levels(self) -> int:
        """Levels of the adder tree over the squares of a chunk."""
        return (self.lanes - 1).bit_length()

    @property
    def tree_steps(self) -> int:
        """Cycles from the squares of a chunk to S: one level, as the squares are sums
        themselves, then two each; then S.
        """
        return 1 + self.tree_levels // 2 + min(self.tree_levels, 1)

    @property
    def root_steps(self) -> int:
        """Cycles from the last chunk taken to N: q, the sum, which is made as the root loads it,
        and the root."""
        return 1 + self.tree_steps + self.root.latency

    @property
    def scale_steps(self) -> int:
        """Cycles from the last chunk taken to the first cycle of its scale: N, then V."""
        return self.root_steps + self.quotient_steps

    # Payloads ----------------------------------------------------------------------

    @property
    def word_layout(self) -> StructLayout:
        return StructLayout({"y": ArrayLayout(signed(self.y_bits), self.rows), "last": 1})

    @property
    def act_layout(self) -> StructLayout:
        fields: dict[str, Shape | ArrayLayout | int] = {
            "q": ArrayLayout(signed(self.profile.act_bits), self.lanes), "last": 1}
        return StructLayout(fields | self.sequence_field)

    @property
    def scale_layout(self) -> StructLayout:
        fields: dict[str, Shape | ArrayLayout | int] = {"v": unsigned(self.scale_bits)}
        fields |= self.sequence_field
        if self.trace:
            fields |= {
                "m": unsigned(self.y_bits),
                "r": unsigned(self.r_bits),
                "s": unsigned(self.sum_bits),
                "n": unsigned(self.norm_bits),
            }
        return StructLayout(fields)
