"""Geometry of a unit that runs programs of stages, derived from its sizes and largest program."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from amaranth.hdl import Cat, Const, ShapeLike, Value, signed, unsigned
from amaranth.lib.data import ArrayLayout, StructLayout

from sterna.hw.core.params.limits import Limits, StageLimits
from sterna.hw.core.params.norm_params import NormParams
from sterna.hw.core.params.sizes import ChosenSizes
from sterna.hw.parts.requantize import RequantizeParams
from sterna.hw.units.glu import GluParams
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.mlgru import MlgruParams
from sterna.model.checks import check_whole, one_of
from sterna.model.profile import NumericProfile
from sterna.model.quantized.plan import StageKind

__all__ = [
    "ADDED", "FRONT_STEPS", "IMAGE_HEADER_BITS", "LEAVES", "MAX_SLOTS", "POST_LANES", "Geometry"]

IMAGE_HEADER_BITS = 512
"""Bits of the header of an image, see :mod:`sterna.hw.core.image.linear`."""

MAX_SLOTS = 3
"""Most matrices interleaved in a stage: f, c and g."""

FRONT_STEPS = 3
"""Cycles from taking sums to requantising them: choice of lanes, then routing from there and from
the memory of headers."""


ADDED = (StageKind.RESIDUAL, StageKind.BEGIN, StageKind.PASS, StageKind.LAST)
"""Kinds of stages with results added to the residual stream or to zero."""

LEAVES = (StageKind.HEAD, StageKind.LAST)
"""Kinds of stages that end a program."""

# Usual sizes:
_QUANT_LANES, POST_LANES, _CELL_LANES, _CLUSTER_COLUMNS = 8, 4, 2, 16


def _power(value: int) -> bool:
    return value & (value - 1) == 0


@dataclass(frozen=True, slots=True)
class Geometry(ChosenSizes):
    """Chosen sizes, and quantities derived from them and the limits of programs."""

    what: ClassVar[str] = "program"

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """The unit of an emitted folder, or of a board's sources, from ``params.json``.

        Raises ValueError if the folder is of something else.
        """
        path = folder / "params.json"
        if not path.is_file():
            raise ValueError(f"{folder} is no folder of a unit: it has no params.json")
        data = json.loads(path.read_text(encoding="utf-8")).get("params", {})
        if data.keys() != {each.name for each in fields(cls)}:
            raise ValueError(f"{path} is not of a {cls.what}")
        return cls(**{name: cls.parsed(name, value) for name, value in data.items()})

    @classmethod
    def parsed(cls, name: str, value: Any) -> Any:
        """A field parsed from JSON."""
        return Limits.from_json(value) if name == "limits" else value

    def __post_init__(self) -> None:
        object.__setattr__(self, "style", one_of("style", self.style, ArrayStyle))
        check_whole("sequences", self.sequences, 1, 64)
        check_whole("phases", self.phases, 0, 2)
        if self.phases == 0:
            object.__setattr__(
                self, "phases", 1 if self.port_bits else min(self.sequences, 2))
        check_whole("rows", self.rows, 1, 1024)
        check_whole("cols", self.cols, 1, 4096)
        self._choose()
        check_whole("clusters", self.clusters, 1, self.cols)
        for name, high in (
            ("rows", 1024), ("sequences", 64), ("quant_lanes", 256),
            ("post_lanes", min(self.rows, self.quant_lanes)), ("cell_lanes", self.post_lanes),
        ):
            value = getattr(self, name)
            check_whole(name, value, 1, high)
            if not _power(value):
                raise ValueError(f"{name} must be a power of two, got {value}")
        if self.sequences < self.phases:
            raise ValueError("two phases take two sequences or more")
        if self.cols % (self.clusters * self.quant_lanes):
            raise ValueError(
                f"cols ({self.cols}) must be a multiple of clusters ({self.clusters}) times "
                f"quant_lanes ({self.quant_lanes})")
        if self.style is ArrayStyle.XC7_PAIR and self.cols // self.clusters % 2:
            raise ValueError(f"{self.style} takes pairs of columns: cols ({self.cols}) over "
                             f"clusters ({self.clusters}) must be even")
        if self.port_bits:
            self._check_port()

    def _choose(self) -> None:
        """Replace zeros by the usual sizes."""
        times = self._lane_factor
        lanes = min(self.cols & -self.cols, times * _QUANT_LANES)
        self._default("root_digit_bits", 1 if self.compact or self.sequences > 1 else 3)
        self._default("quant_lanes", lanes)
        self._default("post_lanes", min(self.rows, self.quant_lanes, times * POST_LANES))
        self._default("cell_lanes", min(self.post_lanes, times * _CELL_LANES))
        chunks = self.cols // max(self.quant_lanes, 1)
        self._default("clusters", next(
            (count for count in range(chunks, 0, -1)
             if chunks % count == 0 and self.cols // count >= _CLUSTER_COLUMNS), 1))

    @property
    def _lane_factor(self) -> int:
        """Multiple of the usual lanes."""
        return 1

    def _default(self, name: str, value: int) -> None:
        if getattr(self, name) == 0:
            object.__setattr__(self, name, value)

    def _check_port(self) -> None:
        if self.phases != 1:
            raise ValueError("two phases would read every weight twice: with a port there is one")
        if self.style is ArrayStyle.XC7_PAIR:
            raise ValueError(f"the codes of {self.style} cannot come through a port")
        check_whole("patience", self.patience, 1, 1 << 32)
        for name, low, high in (("port_bits", 16, 4096), ("ring", 2 * self.tiles, 1 << 16)):
            check_whole(name, getattr(self, name), low, high)
            if not _power(getattr(self, name)):
                raise ValueError(f"{name} must be a power of two, got {getattr(self, name)}")

    # Counts ------------------------------------------------------------------------

    @property
    def profile(self) -> NumericProfile:
        """Formats of every number."""
        return self.limits.profile

    @property
    def batch(self) -> int:
        """Sequences per phase, which is how often each weight word is used."""
        return self.sequences // self.phases

    @property
    def batch_bits(self) -> int:
        """Bits of the number of a sequence in its phase, at least one."""
        return max((self.batch - 1).bit_length(), 1)

    def sequence_of(self, phase: Value, sequence: Value) -> Value:
        """The number of a phase's sequence among all; no bits if there is only one."""
        bits = (self.batch - 1).bit_length()
        return Cat(sequence[:bits], phase if self.phases > 1 else Const(0, 0))

    @property
    def widest(self) -> int:
        """Channels of the longest vector, padded to whole groups of rows, then to whole tiles."""
        channels = max(self.groups(each.columns) for each in self.limits.program) * self.rows
        return -(-channels // self.cols) * self.cols

    @property
    def tiles(self) -> int:
        """Tiles of the longest vector."""
        return self.widest // self.cols

    @property
    def chunks(self) -> int:
        """Chunks of ``quant_lanes`` channels of the longest vector."""
        return self.widest // self.quant_lanes

    @property
    def unit_rows(self) -> int:
        """The rows of a matrix are padded to a multiple of this: whole groups and chunks."""
        return max(self.rows, self.quant_lanes)

    @property
    def row_beats(self) -> int:
        """Beats of results of a group of rows."""
        return self.rows // self.post_lanes

    @property
    def vector_words(self) -> int:
        """Words of ``post_lanes`` channels of the residual stream; 0 if its adder is unused."""
        added = [each for each in self.limits.program if each.kind in ADDED]
        return max((self.groups(each.rows) * self.row_beats for each in added
                    if each.kind is not StageKind.PASS), default=int(bool(added)))

    def groups(self, rows: int, *, chunks: bool = True) -> int:
        """Groups of rows of a matrix, the last ones padded; with ``chunks`` to whole chunks."""
        unit = self.unit_rows if chunks else self.rows
        return -(-rows // unit) * unit // self.rows

    def _groups(self, stage: StageLimits) -> int:
        return self.groups(stage.rows, chunks=stage.kind not in LEAVES)

    @property
    def most_headers(self) -> int:
        """Groups of all matrices of the longest stage."""
        return max(each.slots * self._groups(each) for each in self.limits.program)

    @property
    def stages(self) -> int:
        """Stages of the longest program."""
        return sum(each.count for each in self.limits.program)

    @property
    def most_weights(self) -> int:
        """Weight words of the largest program, one per beat."""
        return sum(each.count * each.slots * self._groups(each) * -(-each.columns // self.cols)
                   for each in self.limits.program)

    @property
    def most_biases(self) -> int:
        """Groups of rows of the largest program."""
        return sum(each.count * each.slots * self._groups(each) for each in self.limits.program)

    @property
    def state_words(self) -> int:
        """Words of ``cell_lanes`` channels in the states of a sequence."""
        return sum(each.count * self._groups(each) * self.rows // self.cell_lanes
                   for each in self.limits.program if each.kind is StageKind.MLGRU)

    # Words of the port -------------------------------------------------------------

    @property
    def port_trits(self) -> int:
        """Weights in a word of the port: five in a byte."""
        return self.port_bits // 8 * 5

    @property
    def stage_parts(self) -> int:
        """Words of the port for a stage."""
        return self._parts(self.stage_layout.size)

    @property
    def header_parts(self) -> int:
        """Words of the port for a word of ``header_layout``."""
        return self._parts(self.header_layout.size)

    @property
    def weight_parts(self) -> int:
        """Words of the port for a weight word."""
        return -(-self.rows * self.cols // self.port_trits)

    @property
    def image_header_parts(self) -> int:
        """Words of the port for the header of an image."""
        return self._parts(IMAGE_HEADER_BITS)

    @property
    def table_parts(self) -> int:
        """Words of the port for the largest table after the stages."""
        return 0

    @property
    def address_bits(self) -> int:
        """Bits of the address of a word of the largest image, and of a number of words."""
        words = (self.image_header_parts + self.stages * self.stage_parts
                 + self.most_biases * self.row_beats * self.header_parts
                 + self.most_weights * self.weight_parts + self.table_parts + 2)
        return words.bit_length()

    @property
    def constants(self) -> tuple[Any, ...]:
        """Numbers of the model fixed in the Verilog even with a port."""
        return ()

    def _parts(self, bits: int) -> int:
        return -(-bits // self.port_bits)

    # Queues ------------------------------------------------------------------------

    @property
    def logit_depth(self) -> int:
        """Beats of results of a head queued at the port."""
        if not self.limits.normalizes:
            return self._in_flight(self.post_latency + 2, self.row_beats) + 1
        return 5 if self.compact else 16

    @property
    def sum_depth(self) -> int:
        """Groups of sums queued: one of every sequence is taken while the next one arrives, or
        waits for its scales."""
        if not self.limits.normalizes:
            return self._in_flight(self.array_latency, 1)
        return max(2 * self.batch, 8 if self.compact else 16)

    def _in_flight(self, latency: int, each: int) -> int:
        """Places in a queue for groups to follow each other without a gap; a group reserves
        ``each`` places ``latency`` cycles before it arrives."""
        fewest = min(-(-stage.columns // self.cols) for stage in self.limits.program)
        return -(-(latency + 3) * each // max(fewest, each)) + each

    @property
    def preact_depth(self) -> int:
        """Beats of pre-activations queued: a group is taken while the next one arrives."""
        return max(2 * self.batch * self.row_beats, 2 if self.compact else 16)

    # Widths ------------------------------------------------------------------------

    @property
    def operand_bits(self) -> int:
        """Signed bits of a sum of ``cols`` operands, complemented or not: [-128 n, 127 n]."""
        return self.profile.act_bits + (self.cols - 1).bit_length()

    @property
    def sum_bits(self) -> int:
        """Signed bits of a dot product of the longest vector, which is at most 128 n in
        magnitude."""
        return (self.widest << self.profile.act_bits - 1).bit_length() + 1

    @property
    def minus_bits(self) -> int:
        """Unsigned bits of the number of -1 weights in a row."""
        return self.widest.bit_length()

    @property
    def bias_bits(self) -> int:
        """Signed bits of a bias: one more than the widest output; an update includes that bit."""
        return max(bits + (kind not in ADDED) for kind, bits in self.result_bits.items())

    @property
    def shift_bits(self) -> int:
        """Bits of a shift minus the smallest one; at least one."""
        low, high = self.limits.shifts
        return max((high - low).bit_length(), 1)

    # Units -------------------------------------------------------------------------

    @property
    def mac(self) -> MacParams:
        """The rows of a cluster."""
        columns = self.cols // self.clusters
        return MacParams(
            self.rows, columns, columns, self.profile.act_bits, self.style)

    @property
    def norm(self) -> NormParams:
        """Widths of the norm."""
        return NormParams(self.profile, self.widest, self.compact, self.root_digit_bits)

    @property
    def norm_spacing(self) -> int:
        """Cycles between the last chunks of two vectors: a root must be done when the next begins,
        and with a divider its quotient too."""
        norm = self.norm
        return norm.root.latency + 1 + (norm.quotient_steps if self.compact else 0)

    @property
    def mlgru(self) -> MlgruParams:
        """An MLGRU lane."""
        return MlgruParams(
            self.profile, 1, self.cell_lanes, self.cell_lanes, trace=self.trace)

    @property
    def glu(self) -> GluParams:
        """The GLU lanes."""
        return GluParams(self.profile, self.cell_lanes, self.trace, silu_table=self.compact)

    @property
    def requantize(self) -> RequantizeParams:
        """The requantiser; the tag of a beat has :attr:`tag_layout`."""
        widest, *narrower = sorted(set(self.result_bits.values()), reverse=True)
        low, high = self.limits.shifts
        return RequantizeParams(
            self.sum_bits, self.profile.scale_bits, self.bias_bits, widest,
            tuple(range(low, high + 1)), self.post_lanes, tuple(narrower), self.tag_layout.size,
            trace=self.trace)

    @property
    def result_bits(self) -> dict[StageKind, int]:
        """Signed bits of the results of each kind of stage. An update of the residual stream has
        one bit more than the stream: a larger update saturates any sum."""
        profile = self.profile
        every = {
            StageKind.MLGRU: profile.z.bits, StageKind.GLU: profile.z.bits,
            **dict.fromkeys(ADDED, profile.x.bits + 1), StageKind.HEAD: profile.logit.bits}
        kinds = {each.kind for each in self.limits.program}
        return {kind: bits for kind, bits in every.items() if kind in kinds}

    @property
    def array_latency(self) -> int:
        """Cycles from the issue of a beat to its sums: memories with output registers, adder tree
        of a cluster, a register for each cluster, accumulator."""
        return 2 + self.mac.row_steps + self.clusters + 1

    @property
    def post_latency(self) -> int:
        """Cycles of the post-processor from a beat of sums to its results."""
        return FRONT_STEPS + (self.requantize.latency if self.limits.requantizes else 0)

    @property
    def kind_bits(self) -> int:
        """Bits of the kind of a stage."""
        return max(2, *(int(kind).bit_length() for kind in self.result_bits))

    # Payloads ----------------------------------------------------------------------

    def tap_layout(self, **fields: ShapeLike) -> StructLayout:
        """A lane of the trace port."""
        return StructLayout({"valid": 1, "sequence": range(max(self.sequences, 2)), **fields})

    @property
    def sum_layout(self) -> ArrayLayout:
        """The sums of a group of rows."""
        return ArrayLayout(signed(self.sum_bits), self.rows)

    @property
    def stage_layout(self) -> StructLayout:
        """A word of the memory of stages.

        ``headers``: groups of rows of all slots. ``chunks`` and ``tiles``: of the vector.
        ``outputs``: rows of a matrix. ``weight``, ``header``, ``state``: start of its weight words,
        biases and states.
        """
        return StructLayout({
            "kind": self.kind_bits,
            "last_slot": 2,
            "tiles": range(self.tiles + 1),
            "chunks": range(self.chunks + 1),
            "headers": range(self.most_headers + 1),
            "outputs": range(max(each.rows for each in self.limits.program) + 1),
            "weight": range(max(self.most_weights, 2)),
            "header": range(max(self.most_biases, 2)),
            "state": range(max(self.state_words, 2)),
            "k": ArrayLayout(unsigned(self.profile.mantissa_bits), MAX_SLOTS),
            "shift": ArrayLayout(unsigned(self.shift_bits), MAX_SLOTS),
        })

    @property
    def header_layout(self) -> ArrayLayout:
        """A word of the memory of biases, a beat of rows: bias and number of -1 weights."""
        return ArrayLayout(StructLayout({
            "bias": signed(self.bias_bits), "minus": unsigned(self.minus_bits)}), self.post_lanes)

    @property
    def tag_layout(self) -> StructLayout:
        """The tag of a beat of results.

        ``beat``: its index in the vector. ``first`` and ``last`` beat of the vector.
        """
        return StructLayout({
            "kind": self.kind_bits, "slot": 2, "phase": 1, "sequence": self.batch_bits,
            "beat": range(max(self.most_beats, 2)), "first": 1, "last": 1})

    @property
    def most_beats(self) -> int:
        """Beats of the longest vector of results, including the logits."""
        return self.row_beats * max(map(self._groups, self.limits.program))
