"""What a core is made for: limits of its models, its geometry, and what follows from both."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amaranth.hdl import ShapeLike, signed, unsigned
from amaranth.lib.data import ArrayLayout, StructLayout

from sterna.hw.parts.bits import signed_bits
from sterna.hw.parts.requantize import RequantizeParams
from sterna.hw.units.glu import GluParams
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.mlgru import MlgruParams
from sterna.hw.units.norm_params import NormParams
from sterna.model.checks import check_whole, one_of
from sterna.model.profile import FixedPoint, NumericProfile
from sterna.model.quantized import QuantizedModel

__all__ = ["IMAGE_HEADER_BITS", "MAX_SLOTS", "STAGE_PARTS", "CoreParams", "Limits", "StageKind"]

IMAGE_HEADER_BITS = 512
"""Bits of what an image begins with, see :mod:`sterna.hw.core.linear_image`."""


MAX_SLOTS = 3
"""Most matrices interleaved in a stage: f, c and g."""


class StageKind(enum.IntEnum):
    """Where the results of a stage go."""

    MLGRU = 0
    """f, c and g: to the MLGRU unit."""
    RESIDUAL = 1
    """out or down: added to the residual stream."""
    GLU = 2
    """gate and up: to the GLU unit."""
    HEAD = 3
    """The logits."""


STAGE_PARTS = (
    (StageKind.MLGRU, ("mlgru.f", "mlgru.c", "mlgru.g")),
    (StageKind.RESIDUAL, ("mlgru.out",)),
    (StageKind.GLU, ("glu.gate", "glu.up")),
    (StageKind.RESIDUAL, ("glu.down",)),
)
"""The stages of a layer, and the matrices of each."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest model that a core runs, and the formats of all of them."""

    profile: NumericProfile
    width: int  #: channels of the residual stream and of the state
    inner: int  #: channels of a GLU
    layers: int
    vocab: int
    shifts: tuple[int, int]  #: smallest and largest right shift of a projection
    #: signed bits of an element of the embedding, those of the residual stream or fewer
    embedding_bits: int

    def __post_init__(self) -> None:
        check_whole("width", self.width, 1, 1 << 16)
        check_whole("inner", self.inner, 1, 1 << 16)
        check_whole("layers", self.layers, 1, 1024)
        check_whole("vocab", self.vocab, 2, 1 << 20)
        low, high = self.shifts
        check_whole("smallest shift", low, 0, high)
        check_whole("largest shift", high, 0, NumericProfile.max_shift)
        check_whole("embedding_bits", self.embedding_bits, 1, self.profile.x.bits)

    @classmethod
    def of(cls, *models: QuantizedModel) -> Limits:
        """The narrowest limits that take all of these models.

        Raises ValueError if a model is of an architecture that the core lacks, or if they differ
        in their formats.
        """
        profiles = {model.profile for model in models}
        if len(profiles) != 1:
            raise ValueError(
                f"a core has one set of formats, got models of "
                f"{', '.join(sorted(profile.name for profile in profiles)) or 'no profile'}")
        configs = [model.config for model in models]
        shifts = [each.shift for model in models for each in model.projections.values()]
        return cls(
            profiles.pop(), max(c.d for c in configs), max(c.dff for c in configs),
            max(c.layers for c in configs), max(c.vocab for c in configs),
            (min(shifts), max(shifts)), max(signed_bits(model.embedding) for model in models))

    def check(self, model: QuantizedModel) -> None:
        """Raise ValueError if a model is beyond these limits: it says which, and by how much."""
        if model.profile != self.profile:
            raise ValueError(f"the core computes in the formats of {self.profile.name}, "
                             f"the model has those of {model.profile.name}")
        config = model.config
        for name, value, limit in (
            ("channels", config.d, self.width), ("GLU channels", config.dff, self.inner),
            ("layers", config.layers, self.layers), ("tokens", config.vocab, self.vocab),
            ("bits in its embedding", signed_bits(model.embedding), self.embedding_bits),
        ):
            if value > limit:
                raise ValueError(f"the model has {value:,} {name}, the core takes {limit:,}")
        low, high = self.shifts
        for name, projection in model.projections.items():
            if not low <= projection.shift <= high:
                raise ValueError(f"{name} has a shift of {projection.shift}, "
                                 f"the core takes {low} to {high}")


# Usual sizes: what an array of 8 x 64 needs to be busy.
_QUANT_LANES, _POST_LANES, _CELL_LANES, _CLUSTER_COLUMNS = 8, 4, 2, 16


def _power(value: int) -> bool:
    return value & (value - 1) == 0


@dataclass(frozen=True, slots=True)
class CoreParams:
    """Geometry of an :class:`~sterna.hw.core.core.Core`.

    >>> from sterna.model.profile import S16
    >>> params = CoreParams(Limits(S16, 128, 384, 4, 256, (12, 20), 16), sequences=16)
    >>> params.phases, params.batch, params.tiles, params.array_latency
    (2, 8, 6, 11)
    """

    limits: Limits
    rows: int = 8  #: dot products side by side
    cols: int = 64  #: columns taken per beat
    #: Parts of the columns, each with memories of its own; 0 for parts of 16 columns or more.
    clusters: int = 0
    sequences: int = 1  #: sequences that share each weight word
    #: Parts of the sequences that take turns, one being normalised while the other is multiplied;
    #: 0 for 2, or 1 if there is one sequence or a port.
    phases: int = 0
    post_lanes: int = 0  #: results made per cycle; 0 for 4, or fewer in a small array
    cell_lanes: int = 0  #: channels of MLGRU and GLU per cycle; 0 for 2, or fewer
    quant_lanes: int = 0  #: activations made per cycle; 0 for 8, or fewer
    #: Bits of a root per cycle; 0 for 3 if a single sequence waits for it, otherwise 1.
    root_digit_bits: int = 0
    #: For a small device, with blocks of 4 kbit and no LUT RAM: a norm that divides a bit per
    #: cycle, a table of silu where the formats allow one, short queues, and no drawn tokens.
    compact: bool = False
    style: ArrayStyle = ArrayStyle.GENERIC  #: what the array is built of; not one with tables
    #: Bits of a word of the memory that the image comes from, through a port; 0 for ROMs.
    port_bits: int = 0
    ring: int = 512  #: weight words that are read ahead through a port
    patience: int = 1 << 20  #: cycles without an answer of the memory that stop the core
    trace: bool = False  #: whether there is a port that shows every intermediate vector

    def __post_init__(self) -> None:
        object.__setattr__(self, "style", one_of("style", self.style, ArrayStyle))
        if self.style.has_tables:
            raise ValueError(f"style must be one without tables, whose activations would have to "
                             f"stand still, got {self.style}")
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
        if self.port_bits:
            self._check_port()

    def _choose(self) -> None:
        """Put the usual sizes in the place of zeros."""
        lanes = min(self.cols & -self.cols, _QUANT_LANES)
        self._default("root_digit_bits", 1 if self.compact or self.sequences > 1 else 3)
        self._default("quant_lanes", lanes)
        self._default("post_lanes", min(self.rows, self.quant_lanes, _POST_LANES))
        self._default("cell_lanes", min(self.post_lanes, _CELL_LANES))
        chunks = self.cols // max(self.quant_lanes, 1)
        self._default("clusters", next(
            (count for count in range(chunks, 0, -1)
             if chunks % count == 0 and self.cols // count >= _CLUSTER_COLUMNS), 1))

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

    @classmethod
    def of_folder(cls, folder: Path) -> CoreParams:
        """The core of an emitted folder, or of a board's sources: ``params.json`` has it.

        Raises ValueError if the folder is of something else.
        """
        path = folder / "params.json"
        if not path.is_file():
            raise ValueError(f"{folder} is no folder of a core: it has no params.json")
        data = json.loads(path.read_text(encoding="utf-8")).get("params", {})
        if "limits" not in data:
            raise ValueError(f"{path} is not of a core")
        profile: dict[str, Any] = {
            name: FixedPoint(**value) if isinstance(value, dict) else value
            for name, value in data["limits"]["profile"].items()}
        limits = {**data["limits"], "profile": NumericProfile(**profile),
                  "shifts": tuple(data["limits"]["shifts"])}
        return cls(**{**data, "limits": Limits(**limits)})

    # Counts ------------------------------------------------------------------------

    @property
    def profile(self) -> NumericProfile:
        """Formats of every number."""
        return self.limits.profile

    @property
    def batch(self) -> int:
        """Sequences of a phase: each weight word is used so often."""
        return self.sequences // self.phases

    @property
    def batch_bits(self) -> int:
        """Bits of the number of a sequence in its phase, one at least."""
        return max((self.batch - 1).bit_length(), 1)

    @property
    def widest(self) -> int:
        """Channels of the longest vector, filled up to whole tiles."""
        return -(-max(self.limits.width, self.limits.inner) // self.cols) * self.cols

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
        """Rows that a matrix is filled up to a multiple of: whole groups and whole chunks."""
        return max(self.rows, self.quant_lanes)

    @property
    def row_beats(self) -> int:
        """Beats of results of a group of rows."""
        return self.rows // self.post_lanes

    def groups(self, rows: int, *, chunks: bool = True) -> int:
        """Groups of rows of a matrix, the last ones filled up; with ``chunks`` to whole chunks."""
        unit = self.unit_rows if chunks else self.rows
        return -(-rows // unit) * unit // self.rows

    @property
    def most_headers(self) -> int:
        """Groups of all matrices of the longest stage."""
        limits = self.limits
        return max(MAX_SLOTS * self.groups(limits.width), 2 * self.groups(limits.inner),
                   self.groups(limits.vocab, chunks=False))

    @property
    def stages(self) -> int:
        """Stages of the deepest model: four a layer, and the head."""
        return 4 * self.limits.layers + 1

    @property
    def most_weights(self) -> int:
        """Weight words of the largest model, the words of its beats."""
        limits, tiles = self.limits, self._tiles
        layer = (4 * self.groups(limits.width) * tiles(limits.width)
                 + 2 * self.groups(limits.inner) * tiles(limits.width)
                 + self.groups(limits.width) * tiles(limits.inner))
        head = self.groups(limits.vocab, chunks=False) * tiles(limits.width)
        return limits.layers * layer + head

    @property
    def most_biases(self) -> int:
        """Groups of rows of the largest model."""
        limits = self.limits
        return (limits.layers * (5 * self.groups(limits.width) + 2 * self.groups(limits.inner))
                + self.groups(limits.vocab, chunks=False))

    def _tiles(self, columns: int) -> int:
        return -(-columns // self.cols)

    @property
    def vector_words(self) -> int:
        """Words of ``post_lanes`` channels of the residual stream."""
        return self.groups(self.limits.width) * self.row_beats

    def logit_beats(self, vocab: int) -> int:
        """Words of the port of logits after a token of a model: whole groups of rows."""
        return self.groups(vocab, chunks=False) * self.row_beats

    @property
    def logit_words(self) -> int:
        """Words of ``post_lanes`` logits of a prediction, for the largest vocabulary."""
        return -(-self.limits.vocab // self.post_lanes)

    @property
    def state_words(self) -> int:
        """Words of ``cell_lanes`` channels of the states of a sequence."""
        return self.limits.layers * self.groups(self.limits.width) * self.rows // self.cell_lanes

    # Words of the port -------------------------------------------------------------

    @property
    def image_header_parts(self) -> int:
        """Words of the port for what an image begins with."""
        return self._parts(IMAGE_HEADER_BITS)

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
    def element_bits(self) -> int:
        """Bits of an element of the embedding in the image: 8, or 16, or 32."""
        return 8 << (-(-self.limits.embedding_bits // 8) - 1).bit_length()

    def row_parts(self, width: int) -> int:
        """Words of the port for the embedding of a token, of so many channels."""
        return self._parts(self.groups(width) * self.rows * self.element_bits)

    def _parts(self, bits: int) -> int:
        return -(-bits // self.port_bits)

    @property
    def address_bits(self) -> int:
        """Bits of the address of a word of the largest image, and of a number of words."""
        limits = self.limits
        words = (self.image_header_parts + self.stages * self.stage_parts
                 + self.most_biases * self.row_beats * self.header_parts
                 + self.most_weights * self.weight_parts
                 + limits.vocab * self.row_parts(limits.width) + 2)
        return words.bit_length()

    # Queues ------------------------------------------------------------------------

    @property
    def logit_depth(self) -> int:
        """Beats of logits that wait at the port."""
        return 4 if self.compact else 16

    @property
    def sum_depth(self) -> int:
        """Groups of sums that wait: one of every sequence is taken while the next one comes, or
        waits for its scales."""
        return max(2 * self.batch, 8 if self.compact else 16)

    @property
    def preact_depth(self) -> int:
        """Beats of pre-activations that wait: a group is taken while the next one comes."""
        return max(2 * self.batch * self.row_beats, 2 if self.compact else 16)

    # Widths ------------------------------------------------------------------------

    @property
    def operand_bits(self) -> int:
        """Signed bits of a sum of ``cols`` operands, a complement or not: [-128 n, 127 n]."""
        return self.profile.act_bits + (self.cols - 1).bit_length()

    @property
    def sum_bits(self) -> int:
        """Signed bits of a dot product of the longest vector, which is at most 128 n in
        magnitude."""
        return (self.widest << self.profile.act_bits - 1).bit_length() + 1

    @property
    def minus_bits(self) -> int:
        """Unsigned bits of a number of -1 weights in a row."""
        return self.widest.bit_length()

    @property
    def bias_bits(self) -> int:
        """Signed bits of a bias: one more than the widest output."""
        profile = self.profile
        return max(profile.z.bits, profile.x.bits, profile.logit.bits) + 1

    @property
    def token_bits(self) -> int:
        """Bits of a token."""
        return (self.limits.vocab - 1).bit_length()

    @property
    def shift_bits(self) -> int:
        """Bits of a shift, counted from the smallest; one at least."""
        low, high = self.limits.shifts
        return max((high - low).bit_length(), 1)

    # Units -------------------------------------------------------------------------

    @property
    def mac(self) -> MacParams:
        """The rows of a cluster."""
        columns = self.cols // self.clusters
        return MacParams(
            self.rows, columns, columns, self.profile.act_bits, self.style, stalls=False)

    @property
    def norm(self) -> NormParams:
        """Widths of the norm."""
        return NormParams(self.profile, self.quant_lanes, self.quant_lanes, self.widest,
                          digit_bits=int(self.compact), root_digit_bits=self.root_digit_bits)

    @property
    def norm_spacing(self) -> int:
        """Cycles between the last chunks of two vectors: a root is done when the next begins, and
        with a divider its quotient too."""
        norm = self.norm
        return norm.root.latency + 1 + (norm.quotient_steps if self.compact else 0)

    @property
    def mlgru(self) -> MlgruParams:
        """An MLGRU lane."""
        return MlgruParams(self.profile, 1, self.cell_lanes, self.cell_lanes,
                           trace=self.trace, stalls=False)

    @property
    def glu(self) -> GluParams:
        """The GLU lanes."""
        return GluParams(self.profile, self.cell_lanes, trace=self.trace, stalls=False,
                         silu_table=self.compact)

    @property
    def requantize(self) -> RequantizeParams:
        """The requantiser; what travels with a beat has :attr:`tag_layout`."""
        widest, *narrower = sorted(set(self.result_bits.values()), reverse=True)
        low, high = self.limits.shifts
        return RequantizeParams(
            self.sum_bits, self.profile.scale_bits, self.bias_bits, widest,
            tuple(range(low, high + 1)), self.post_lanes, tuple(narrower), self.tag_layout.size,
            trace=self.trace, stalls=False)

    @property
    def result_bits(self) -> dict[StageKind, int]:
        """Signed bits of the results of each kind of stage. An update of the residual stream has a
        bit more than the stream: what is larger saturates the sum, whatever it is added to."""
        profile = self.profile
        return {
            StageKind.MLGRU: profile.z.bits, StageKind.GLU: profile.z.bits,
            StageKind.RESIDUAL: profile.x.bits + 1, StageKind.HEAD: profile.logit.bits}

    @property
    def array_latency(self) -> int:
        """Cycles from the issue of a beat to its sums: memories and their registers, the tree of a
        cluster, a register for each cluster, the accumulator."""
        return 2 + self.mac.row_steps + self.clusters + 1

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
        ``outputs``: rows of a matrix.
        ``weight``, ``header``, ``state``: where its weight words, biases and states begin.
        """
        return StructLayout({
            "kind": 2,
            "last_slot": 2,
            "tiles": range(self.tiles + 1),
            "chunks": range(self.chunks + 1),
            "headers": range(self.most_headers + 1),
            "outputs": range(max(self.limits.width, self.limits.inner, self.limits.vocab) + 1),
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
        """What travels with a beat of results.

        ``beat``: its place in the vector. ``first`` and ``last`` beat of the vector.
        """
        return StructLayout({
            "kind": 2, "slot": 2, "phase": 1, "sequence": self.batch_bits,
            "beat": range(max(self.most_beats, 2)), "first": 1, "last": 1})

    @property
    def most_beats(self) -> int:
        """Beats of the longest vector of results, the logits among them."""
        limits = self.limits
        return self.row_beats * max(
            self.groups(limits.width), self.groups(limits.inner),
            self.groups(limits.vocab, chunks=False))
