"""Parameters of the gateware, and every width, depth and cycle count that follows.

One frozen object per unit. The component, the packer, the emitter and the simulation all
read it; none of them derives a number on its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import Shape, signed, unsigned
from amaranth.lib.data import ArrayLayout, StructLayout

from sterna.hw.array.steps import FILL_ENTRIES, row_steps
from sterna.hw.array.style import ArrayStyle
from sterna.hw.array.xc7_pair_codes import PAIR_BITS
from sterna.hw.trit import Trit
from sterna.hw.trit_codes import TRIPLE_BITS
from sterna.model.checks import check_whole
from sterna.model.profile import NumericProfile

__all__ = ["MacParams", "MlgruParams", "sigmoid_latency"]


@dataclass(frozen=True, slots=True)
class MacParams:
    """Geometry of a ternary multiply-accumulate array.

    Parameters
    ----------
    rows
        Dot products computed side by side.
    cols
        Columns taken per beat.
    max_columns
        Columns of the widest matrix; a dot product may have fewer.
    act_bits
        Bits of a signed activation.
    style
        What the array is built of.

    Raises
    ------
    ValueError
        If a number is out of its range, or there is no such style.

    >>> params = MacParams(rows=8, cols=128, max_columns=384)
    >>> params.sum_bits, params.latency, params.beats_per_group(384)
    (17, 8, 3)
    """

    rows: int
    cols: int
    max_columns: int
    act_bits: int = 8
    style: ArrayStyle = ArrayStyle.GENERIC

    def __post_init__(self) -> None:
        if self.style not in list(ArrayStyle):
            raise ValueError(
                f"style must be one of {', '.join(ArrayStyle)}, got {self.style!r}")
        object.__setattr__(self, "style", ArrayStyle(self.style))
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
        return max(1, (self.cols - 1).bit_length())

    @property
    def row_steps(self) -> int:
        """Steps from the operands of a beat to what the accumulator adds."""
        return row_steps(self.style, self.cols)

    @property
    def latency(self) -> int:
        """Steps from the last beat of a group to its sums: the row and the accumulator."""
        return self.row_steps + 1

    @property
    def triples(self) -> int:
        """Triples of columns of a beat, in a style with tables; the last is filled up."""
        return -(-self.cols // 3)

    @property
    def entry_bits(self) -> int:
        """Signed width of an entry of a table: three activations added or subtracted."""
        return self.act_bits + 2

    @property
    def entry_shape(self) -> Shape:
        """Shape of an entry: offset binary where the adders take that."""
        is_signed = self.style is not ArrayStyle.ECP5_TABLE
        return Shape(self.entry_bits, is_signed)

    @property
    def fill_entries(self) -> int:
        """Entries that load activations into a table; 0 in a style without tables."""
        return FILL_ENTRIES.get(self.style, 0)

    @property
    def index_bits(self) -> int:
        """Bits of the address of an entry, in a style with tables."""
        return self.fill_entries.bit_length()

    @property
    def fill_steps(self) -> int:
        """Cycles that a beat of fresh activations waits until tables hold them.

        The first notices the beat, each of the others writes an entry.
        """
        return self.fill_entries + 1 if self.fill_entries else 0

    @property
    def start_name(self) -> str | None:
        """Field of a beat with the start values of its rows; none if all start from 0."""
        match self.style:
            case ArrayStyle.XC7_TABLE:
                return None
            case ArrayStyle.ECP5_TABLE:
                return "starts"
        return "minus_counts"

    @property
    def start_shape(self) -> Shape:
        """Shape of a row's start value: what its complements lack.

        A number of -1 weights, or with relative signs a number of triples that may be
        negative.
        """
        match self.style:
            case ArrayStyle.XC7_TABLE:
                return unsigned(0)
            case ArrayStyle.ECP5_TABLE:
                return signed((self.max_beats * self.triples).bit_length() + 1)
        return unsigned(self.count_bits)

    def beats_per_group(self, columns: int) -> int:
        """Beats that bring one vector of ``columns`` activations past ``rows`` rows."""
        return -(-columns // self.cols)

    def groups(self, matrix_rows: int) -> int:
        """Groups of ``rows`` rows in a matrix, the last one filled up with zeros."""
        return -(-matrix_rows // self.rows)

    @property
    def weight_name(self) -> str:
        """Field of a beat with its weights."""
        return "codes" if self.style.has_tables else "weights"

    @property
    def code_bits(self) -> int:
        """Bits of a code of :func:`sterna.hw.array.codes.row_codes`: of 1, 2 or 3 weights."""
        if self.style.has_tables:
            return TRIPLE_BITS
        return PAIR_BITS if self.style is ArrayStyle.XC7_PAIR else 2

    @property
    def weight_layout(self) -> ArrayLayout:
        """The weights of a row in a beat."""
        if self.style.has_tables:
            return ArrayLayout(unsigned(TRIPLE_BITS), self.triples)
        if self.style is ArrayStyle.XC7_PAIR:
            return ArrayLayout(unsigned(PAIR_BITS), -(-self.cols // 2))
        return ArrayLayout(Trit, self.cols)

    @property
    def beat_layout(self) -> StructLayout:
        """Payload of ``beats``. What a weight memory holds comes first, then ``acts``."""
        starts = ({self.start_name: ArrayLayout(self.start_shape, self.rows)}
                  if self.start_name else {})
        return StructLayout({
            self.weight_name: ArrayLayout(self.weight_layout, self.rows),
            **starts,
            "last": 1,
            **({"fresh": 1} if self.style.has_tables else {}),
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


def sigmoid_latency(profile: NumericProfile, block_table: bool = False) -> int:
    """Steps through a sigmoid table: two for the entry, two to interpolate.

    An entry goes through the output register of a block memory, or through a register in
    each quarter of a table of LUTs. Interpolation takes a product and a sum, and behind a
    block memory one step more, as the operands of a multiplier are registers of its own.
    """
    if profile.sigmoid_step_bits:
        return 5 if block_table else 4
    return 2


@dataclass(frozen=True, slots=True)
class MlgruParams:
    """Geometry and formats of an MLGRU unit.

    Parameters
    ----------
    profile
        Formats of every number.
    layers, channels
        Shape of the state of one sequence.
    lanes
        Channels taken per beat.
    streams
        Sequences whose states are kept.
    trace
        Whether gates and candidate come out beside the results.
    spaced
        Whether the unit keeps beats of the same word of a tiny state apart. A core, whose
        tokens are far longer than the pipeline, does not need it.
    stalls
        Whether results may have to wait to be taken.
    block_tables
        Whether the sigmoid tables are in block memory; otherwise they are made of LUTs.
    far_registers
        Whether what a multiplier takes from another goes through one more register.

    Raises
    ------
    ValueError
        If a number is out of its range or ``lanes`` does not divide ``channels``.

    >>> from sterna.model.profile import C12
    >>> params = MlgruParams(C12, layers=4, channels=128, lanes=8)
    >>> params.words, params.latency, params.beat_spacing
    (64, 9, 1)
    """

    profile: NumericProfile
    layers: int
    channels: int
    lanes: int = 1
    streams: int = 1
    trace: bool = False
    spaced: bool = True
    stalls: bool = True
    block_tables: bool = False
    far_registers: bool = False

    def __post_init__(self) -> None:
        check_whole("layers", self.layers, 1, 1024)
        check_whole("channels", self.channels, 1, 1 << 17)
        check_whole("streams", self.streams, 1, 16)
        check_whole("lanes", self.lanes, 1, 65536)
        if self.channels % self.lanes:
            raise ValueError(
                f"channels ({self.channels}) must be a multiple of lanes ({self.lanes})")

    @property
    def beats_per_layer(self) -> int:
        """Beats that bring every channel of a layer."""
        return self.channels // self.lanes

    @property
    def words(self) -> int:
        """Beats of a token; each has a word of the state memory."""
        return self.layers * self.beats_per_layer

    @property
    def sequence_bits(self) -> int:
        """Bits of the number of a sequence."""
        return (self.streams - 1).bit_length()

    @property
    def memory_words(self) -> int:
        """Depth of the state memory: a memory without an address is no valid Verilog."""
        return max(self.words * self.streams, 2)

    @property
    def candidate_step(self) -> int:
        """Step at which c, and with it the old state, is needed: product and saturation."""
        return sigmoid_latency(self.profile, self.block_tables) + self.far_registers + 2

    @property
    def read_step(self) -> int:
        """Step at which the old state is read.

        Then it goes through the output register of the memory and a register that holds 0
        in the first token of a sequence.
        """
        return self.candidate_step - 3

    @property
    def state_step(self) -> int:
        """Step at which the new state is known: difference, product, sum."""
        return self.candidate_step + 3

    @property
    def latency(self) -> int:
        """Steps from a beat of ``preacts`` to its beat of ``states``: product, saturation."""
        return self.state_step + self.far_registers + 2

    @property
    def beat_spacing(self) -> int:
        """Steps from one beat taken to the next.

        The memory is read at the end of ``read_step`` and written at the end of
        ``state_step``, so beats that use the same word must be further apart than the
        difference. They are ``words`` beats apart: only a tiny state needs a pause.
        """
        if not self.spaced:
            return 1
        return -(-(self.state_step - self.read_step + 1) // self.words)

    @property
    def preact_layout(self) -> StructLayout:
        """Payload of ``preacts``."""
        lanes = ArrayLayout(signed(self.profile.z.bits), self.lanes)
        return StructLayout(
            {"f": lanes, "c": lanes, "g": lanes, "start": 1, **self._sequence_field})

    @property
    def state_layout(self) -> StructLayout:
        """Payload of ``states``."""
        sigmoids = ArrayLayout(unsigned(self.profile.sigmoid_frac), self.lanes)
        candidates = ArrayLayout(signed(self.profile.h.bits), self.lanes)
        return StructLayout({
            "o": ArrayLayout(signed(self.profile.o.bits), self.lanes),
            "h": ArrayLayout(signed(self.profile.h.bits), self.lanes),
            "last": 1,
            **self._sequence_field,
            **({"f": sigmoids, "g": sigmoids, "c": candidates} if self.trace else {}),
        })

    @property
    def _sequence_field(self) -> dict[str, int]:
        return {"sequence": self.sequence_bits} if self.sequence_bits else {}
