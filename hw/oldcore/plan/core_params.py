"""Geometry of the core, every count that follows from it, and its program.

The program is the projections of a token, in the order in which they run. A *stage* is what
happens between two quantisations: one vector is multiplied with one, two or three matrices. The
rows of those matrices are interleaved, so that f, c and g of a channel (or gate and up) leave the
array one after the other, on the same lane.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sterna.hw.core.core_params import MAX_SLOTS, STAGE_PARTS, StageKind
from sterna.hw.parts.sequence import Interleaved
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.norm_params import MAX_DIGIT_BITS, MAX_ROOT_DIGIT_BITS
from sterna.model.checks import check_whole, one_of
from sterna.model.config import ModelConfig
from sterna.model.profile import NumericProfile

__all__ = ["COMPACT", "MAX_SEQUENCES", "MAX_SLOTS", "STAGE_PARTS", "CoreParams", "Stage",
           "StageKind", "program"]

MAX_SEQUENCES = 2
"""Independent sequences that can be interleaved on one array."""

COMPACT: Mapping[str, Any] = MappingProxyType({
    "digit_bits": 1, "root_digit_bits": 1, "block_activations": True, "silu_table": True})
"""What makes a core fit a small device: a norm of four times fewer logic cells, whose dividers
and root give a bit per cycle, tiles that are no flip-flops where there is no LUT memory, and a
multiplier less for each row."""


@dataclass(frozen=True, slots=True)
class CoreParams(Interleaved):
    """Geometry of a :class:`~sterna.hw.oldcore.core.MatMulFreeCore`.

    Dimensions of the model need not divide by anything: the packer fills up with zeros.

    >>> from sterna.model.profile import C12
    >>> params = CoreParams(ModelConfig.named("tiny"), C12)
    >>> params.quant_lanes, params.stages, params.mac_cycles
    (32, 17, 864)
    """

    #: shape of the model and formats of its numbers
    config: ModelConfig
    profile: NumericProfile
    rows: int = 8  #: dot products computed side by side, and post-processing lanes
    #: Columns taken per beat, a multiple of ``quant_lanes``. Those beyond the widest vector
    #: never have work.
    cols: int = 128
    sequences: int = 1  #: interleaved independent sequences, 1 or 2
    #: elements quantised per cycle, a multiple of ``rows``; 0 takes four words of ``rows``
    #: elements, or fewer if four do not divide ``cols``
    quant_lanes: int = 0
    #: quotient bits per cycle of the two dividers, or 0 for a table in their place, and bits
    #: per cycle of the root; for the root 0 takes 3, or 2 with ``routing_registers``
    digit_bits: int = 0
    root_digit_bits: int = 0
    logits: bool = True  #: whether there is a port that streams the logits
    trace: bool = False  #: whether there is a port that shows every intermediate vector
    #: whether weight words come in through a port; otherwise from a memory inside
    external_weights: bool = False
    style: ArrayStyle = ArrayStyle.GENERIC  #: what the array is built of
    sampling: bool = True  #: whether tokens can be drawn with a temperature; greedy only otherwise
    #: Whether the tiles of activations lie in block memory; otherwise in LUT memory, which is
    #: the better use of an FPGA that has it. No cycle differs.
    block_activations: bool = False
    #: Whether ``silu(gate)`` is looked up where the profile allows it, instead of multiplied: a
    #: multiplier less for each row. No cycle differs.
    silu_table: bool = False
    #: whether what crosses a large device, from block to block, gets a register more on its
    #: way: a higher clock for some cycles more of each stage
    routing_registers: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "style", one_of("style", self.style, ArrayStyle))
        check_whole("rows", self.rows, 1, 4096)
        check_whole("cols", self.cols, 1, 4096)
        check_whole("sequences", self.sequences, 1, MAX_SEQUENCES)
        check_whole("digit_bits", self.digit_bits, 0, MAX_DIGIT_BITS)
        check_whole("root_digit_bits", self.root_digit_bits, 0, MAX_ROOT_DIGIT_BITS)
        if self.root_digit_bits == 0:
            object.__setattr__(self, "root_digit_bits", 2 if self.routing_registers else 3)
        if self.cols % self.rows:
            raise ValueError(
                f"cols ({self.cols}) must be a multiple of rows ({self.rows}): activations "
                f"arrive in words of rows elements")
        if self.quant_lanes == 0:
            words = next(count for count in (4, 2, 1) if self.cols % (count * self.rows) == 0)
            object.__setattr__(self, "quant_lanes", words * self.rows)
        check_whole("quant_lanes", self.quant_lanes, 1, 4096)
        if self.quant_lanes % self.rows or self.cols % self.quant_lanes:
            raise ValueError(
                f"quant_lanes ({self.quant_lanes}) must be a multiple of rows ({self.rows}) "
                f"and divide cols ({self.cols})")

    @property
    def compact(self) -> bool:
        """Whether it has all that :data:`COMPACT` says."""
        return all(getattr(self, name) == value for name, value in COMPACT.items())

    @property
    def widest(self) -> int:
        """Channels of the longest vector that is multiplied, filled up to a beat at least."""
        return max(self.config.d, self.config.dff, self.cols)

    @property
    def mac(self) -> MacParams:
        """Geometry of the array, which that of the core follows from; its sums never wait."""
        return MacParams(
            self.rows, self.cols, self.widest, self.profile.act_bits, self.style, stalls=False)

    @property
    def stages(self) -> int:
        """Stages of a token: four a layer, and the head."""
        return 4 * self.config.layers + 1

    @property
    def vocab_words(self) -> int:
        """Words of ``rows`` logits."""
        return self.words(self.config.vocab)

    @property
    def tiles(self) -> int:
        """Tiles of ``cols`` activations of the longest vector."""
        return self.mac.max_beats

    @property
    def chunks_per_tile(self) -> int:
        """Cycles that bring a tile out of the quantiser."""
        return self.cols // self.quant_lanes

    @property
    def index_bits(self) -> int:
        """Bits of the number of a sequence on a wire: Verilog has none without a bit."""
        return max(self.sequence_bits, 1)

    @property
    def token_bits(self) -> int:
        """Bits of a token."""
        return (self.config.vocab - 1).bit_length()

    @property
    def weight_bits(self) -> int:
        """Bits of a weight word: the weights of a beat."""
        return self.rows * self.mac.weight_layout.size

    @property
    def feed_steps(self) -> int:
        """Steps from the issuing of a beat to the array.

        Weights come through the output register of their memory. Activations are read a step
        after the issuing, for which the tile need not be complete, and go through a register to
        all rows. All of it goes through one more with ``routing_registers``.
        """
        return 3 if self.routing_registers else 2

    @property
    def read_steps(self) -> int:
        """Steps from the address of a tile to its activations."""
        return 1 if self.block_activations else 0

    @property
    def mac_cycles(self) -> int:
        """Beats of the array per token: no schedule can take fewer cycles."""
        return sum(
            self.mac.groups(rows) * self.mac.beats_per_group(columns)
            for rows, columns in self.config.projections().values())

    def words(self, channels: int) -> int:
        """Words of ``rows`` elements that hold a vector."""
        return -(-channels // self.rows)


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage."""

    kind: StageKind  #: where its results go
    projections: tuple[str, ...]  #: names of its matrices, in the order of their slots
    norm: str  #: name of the norm whose quantised vector it multiplies
    #: shape of each of its matrices
    rows: int
    columns: int
    groups: int  #: groups of ``params.rows`` rows in each matrix
    tiles: int  #: tiles of ``params.cols`` columns: beats of a group
    #: position of its first weight word, and of its first row header (one for each group of
    #: each matrix)
    first_weight: int
    first_header: int

    @property
    def slots(self) -> int:
        """Interleaved matrices."""
        return len(self.projections)

    @property
    def headers(self) -> int:
        """Groups of all matrices together."""
        return self.groups * self.slots

    @property
    def beats(self) -> int:
        """Beats of the array."""
        return self.headers * self.tiles


def program(params: CoreParams) -> list[Stage]:
    """Return the stages of a token.

    >>> from sterna.model.profile import S16
    >>> stages = program(CoreParams(ModelConfig.named("nano"), S16, rows=8, cols=64))
    >>> [(stage.kind.name, stage.beats) for stage in stages[:4]]
    [('MLGRU', 24), ('RESIDUAL', 8), ('GLU', 48), ('RESIDUAL', 24)]
    """
    named = [
        (kind, tuple(f"layer{layer}.{part}" for part in parts))
        for layer in range(params.config.layers) for kind, parts in STAGE_PARTS]
    named.append((StageKind.HEAD, ("head",)))

    shapes = params.config.projections()
    stages: list[Stage] = []
    weight = header = 0
    for kind, names in named:
        rows, columns = shapes[names[0]]
        stage = Stage(
            kind, names, ModelConfig.norm_of(names[0]), rows, columns,
            params.mac.groups(rows), params.mac.beats_per_group(columns), weight, header)
        stages.append(stage)
        weight += stage.beats
        header += stage.headers
    return stages
