"""Geometry of the array, and every width, depth and cycle count that follows from it.

The single source of these numbers for component, packer, emitter and simulation.
"""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import signed, unsigned
from amaranth.lib.data import ArrayLayout, StructLayout

from sterna.hw.units.mac.array_style import ArrayStyle, row_steps
from sterna.hw.units.mac.weight_codes import PAIR_BITS, Trit
from sterna.model.checks import check_whole, one_of

__all__ = ["MacParams"]


@dataclass(frozen=True, slots=True)
class MacParams:
    """Geometry of a ternary multiply-accumulate array.

    >>> params = MacParams(rows=8, cols=128, max_columns=384)
    >>> params.sum_bits, params.latency, params.beats_per_group(384)
    (17, 8, 3)
    """

    rows: int  #: dot products computed side by side
    cols: int  #: columns taken per beat
    max_columns: int  #: columns of the widest matrix; a dot product may have fewer
    act_bits: int = 8  #: bits of a signed activation
    style: ArrayStyle = ArrayStyle.GENERIC  #: structure of the rows

    def __post_init__(self) -> None:
        object.__setattr__(self, "style", one_of("style", self.style, ArrayStyle))
        check_whole("rows", self.rows, 1, 4096)
        check_whole("max_columns", self.max_columns, 1, 1 << 20)
        check_whole("cols", self.cols, 1, 4096)
        if self.cols > self.max_columns:
            raise ValueError(
                f"cols ({self.cols}) must be at most max_columns ({self.max_columns}), "
                f"or some columns of the array would never have work")
        check_whole("act_bits", self.act_bits, 2, 16)

    @property
    def count_bits(self) -> int:
        """Unsigned width of a number of weights in a row, 0 to ``max_columns``."""
        return self.max_columns.bit_length()

    @property
    def max_beats(self) -> int:
        """Beats of the longest group of rows."""
        return self.beats_per_group(self.max_columns)

    @property
    def sum_limit(self) -> int:
        """Largest magnitude of a dot product: every activation -128 (for 8 bits)."""
        return self.max_columns << (self.act_bits - 1)

    @property
    def sum_bits(self) -> int:
        """Signed width that holds ``-sum_limit`` to ``+sum_limit``, and no more.

        It also holds every intermediate value of an accumulator. A row of n columns starts
        from the number m of its -1 weights, 0 <= m <= n, and adds n one's complement
        operands, each in [-128, 127]. After k of them it is in [-128k, m + 127k], and
        m + 127k <= n + 127n = 128n.
        """
        return self.sum_limit.bit_length() + 1

    def operand_bits(self, operands: int) -> int:
        """Signed width of a sum of one's complement operands: [-128k, 127k] for k of them."""
        return self.act_bits + (operands - 1).bit_length()

    @property
    def tree_levels(self) -> int:
        """Levels of the adder tree, a register after each; one if there is nothing to add."""
        return row_steps(ArrayStyle.GENERIC, self.cols)

    @property
    def row_steps(self) -> int:
        """Steps from the operands of a beat to the operand of the accumulator."""
        return row_steps(self.style, self.cols)

    @property
    def latency(self) -> int:
        """Steps from the last beat of a group to its sums: the row and the accumulator."""
        return self.row_steps + 1

    def beats_per_group(self, columns: int) -> int:
        """Beats to multiply one vector of ``columns`` activations with ``rows`` rows."""
        return -(-columns // self.cols)

    def groups(self, matrix_rows: int) -> int:
        """Groups of ``rows`` rows in a matrix, the last one padded with zeros."""
        return -(-matrix_rows // self.rows)

    @property
    def code_bits(self) -> int:
        """Bits of a code for one weight or two."""
        return PAIR_BITS if self.style is ArrayStyle.XC7_PAIR else 2

    @property
    def weight_layout(self) -> ArrayLayout:
        """The weights of a row in a beat."""
        if self.style is ArrayStyle.XC7_PAIR:
            return ArrayLayout(unsigned(PAIR_BITS), -(-self.cols // 2))
        return ArrayLayout(Trit, self.cols)

    @property
    def beat_layout(self) -> StructLayout:
        """Payload of ``beats``: the contents of a weight memory, then ``acts``."""
        return StructLayout({
            "weights": ArrayLayout(self.weight_layout, self.rows),
            "minus_counts": ArrayLayout(unsigned(self.count_bits), self.rows),
            "last": 1,
            "acts": ArrayLayout(signed(self.act_bits), self.cols),
        })

    @property
    def word_bits(self) -> int:
        """Low bits of the payload of ``beats`` that depend on the weights only."""
        return self.beat_layout["acts"].offset

    @property
    def sum_layout(self) -> ArrayLayout:
        """Payload of ``sums``."""
        return ArrayLayout(signed(self.sum_bits), self.rows)
