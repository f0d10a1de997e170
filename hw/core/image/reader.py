"""The memory port: checks an image once, then prefetches its groups for the array."""

from __future__ import annotations

import zlib
from dataclasses import fields

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import enum, fifo, memory, stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.image.linear import (
    IMAGE_FILE,
    MAGIC,
    TRITS_PER_BYTE,
    VERSION,
    ImageHeader,
    format_digest,
)
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.core.params.geometry import IMAGE_HEADER_BITS, Geometry
from sterna.hw.parts.arithmetic import constant_product
from sterna.hw.parts.pipeline import Pipeline

__all__ = [
    "DECODE_STEPS", "ImageReader", "ImageStatus", "header_fill_layout", "port_section",
    "read_layout", "weight_fill_layout"]

DECODE_STEPS = TRITS_PER_BYTE + 2
"""Cycles from a word of the port until its weights in the ring are usable."""

_OUTSTANDING = 16
"""Most requests with words still to arrive."""


_CRC_TAPS = [place for place in range(32) if 0xEDB88320 >> place & 1]

_ALL_ONES = (1 << 32) - 1

_RESIDUE = zlib.crc32(bytes(4)) ^ _ALL_ONES
"""Residue of a CRC-32 computed over data and its CRC, before the final inversion."""


class ImageStatus(enum.Enum, shape=3):  # type: ignore[call-arg]  # shape is for Amaranth's metaclass
    """Status of the image."""

    LOADING = 0     #: it is being read for the first time
    RUNNING = 1     #: it is intact and for this core
    NO_IMAGE = 2    #: it begins with something else
    VERSION = 3     #: it is of another version
    OTHER_CORE = 4    #: it is for other limits, array, lanes, port or scaling of frames
    DAMAGED = 5     #: its CRC-32 does not match
    FAILED = 6      #: the memory reported an error
    SILENT = 7      #: no word arrived for ``params.patience`` cycles


def read_layout(params: Geometry) -> StructLayout:
    """A linear read: ``count`` words of the port starting at word ``address``."""
    return StructLayout({"address": params.address_bits, "count": params.address_bits})


def weight_fill_layout(params: Geometry) -> StructLayout:
    """Weight codes for the clusters: part ``part`` of the word at ``address``."""
    return StructLayout({
        "valid": 1, "part": range(max(params.weight_parts, 2)), "last": 1,
        "address": range(params.ring), "codes": ArrayLayout(unsigned(2), params.port_trits)})


def header_fill_layout(params: Geometry) -> StructLayout:
    """Biases and numbers of -1 weights: part ``part`` of the word at ``address``."""
    return StructLayout({
        "valid": 1, "part": range(max(params.header_parts, 2)), "last": 1,
        "address": range(params.ring * params.row_beats), "bits": params.port_bits})


class ImageReader(wiring.Component):
    """Reads the whole image once, to check it and store its stages, then prefetches the groups of
    the stages over and over, as far as there is room.

    With an embedding, it also reads the rows of tokens on request, and the last stage, a head, only
    for a token that predicts.

    Words must arrive in the order of the requests, and never before. A status other than
    ``LOADING`` or ``RUNNING`` persists until the next reset.

    Members
    -------
    reads : ``Out(stream.Signature(read_layout(params)))``
    data : ``In(stream.Signature(params.port_bits))``
    failed : ``In(1)``
        The memory has reported an error since the reset.
    status : ``Out(ImageStatus)``
    stage, stage_index, stage_valid : ``Out``
        A stage, during the first read of the image.
    weights, headers : ``Out``
        Prefetched data.
    word_used, header_used : ``In(1)``
        A weight word, or the header of a group, is no longer needed.
    begins, predicts : ``In(1)``, with an embedding
        A token begins, and whether its head is needed.
    tokens : ``In(stream.Signature(params.token_bits))``, with an embedding
    rows : ``Out(stream.Signature(params.port_bits))``, with an embedding
        The words of the rows of these tokens.
    """

    def __init__(self, params: Geometry) -> None:
        self.params = params
        rows = {
            "begins": In(1), "predicts": In(1), "tokens": In(stream.Signature(params.token_bits)),
            "rows": Out(stream.Signature(params.port_bits)),
        } if isinstance(params, CoreParams) else {}
        self._has_rows = bool(rows)
        super().__init__({
            "reads": Out(stream.Signature(read_layout(params))),
            "data": In(stream.Signature(params.port_bits)),
            "failed": In(1),
            "status": Out(ImageStatus),
            "stage": Out(params.stage_layout),
            "stage_index": Out(range(max(params.stages, 2))),
            "stage_valid": Out(1),
            "weights": Out(weight_fill_layout(params)),
            "headers": Out(header_fill_layout(params)),
            "word_used": In(1),
            "header_used": In(1),
            **rows,
        })

    def elaborate(self, platform):
        m = Module()
        params = self.params
        # For each outstanding request, whether it is of a row, and the tiles of its group.
        m.submodules.queue = queue = fifo.SyncFIFOBuffered(
            width=tag_layout(params).size, depth=_OUTSTANDING)
        header = Signal(header_layout(), reset_less=True)
        self._check(m, header)
        self._ask(m, header, queue)
        self._receive(m, header, queue)
        self._watch(m, queue)
        return m

    def _watch(self, m, queue):
        """Detect errors and missing words."""
        patience = self.params.patience
        waited = Signal(range(patience + 1))
        works = (self.status == ImageStatus.LOADING) | (self.status == ImageStatus.RUNNING)
        with m.If(self.data.valid | ~(queue.r_rdy | (self.status == ImageStatus.LOADING))):
            m.d.sync += waited.eq(0)
        with m.Elif(waited != patience):
            m.d.sync += waited.eq(waited + 1)
        with m.If(works & (waited == patience)):
            m.d.sync += self.status.eq(ImageStatus.SILENT)
        with m.If(works & self.failed):
            m.d.sync += self.status.eq(ImageStatus.FAILED)

    def _check(self, m, header):
        """Read the whole image, and store its header and stages."""
        params, port, data = self.params, self.params.port_bits, self.data
        header_words = params.image_header_parts
        crc = Signal(32, init=_ALL_ONES)
        taken = data.valid & (self.status == ImageStatus.LOADING)
        left = Signal(params.address_bits)
        self._stages_left = stages_left = Signal(range(params.stages + 1))
        part = Signal(range(max(params.stage_parts, 2)))
        last_part = part == params.stage_parts - 1
        parts = Signal(params.stage_parts * port, reset_less=True)
        m.d.comb += self.stage.eq(parts[:params.stage_layout.size])
        m.d.sync += self.stage_valid.eq(0)
        with m.If(taken):
            m.d.sync += crc.eq(_crc_after(crc, data.payload))
        with m.FSM(name="check"):
            with m.State("ASK_HEADER"):
                m.d.comb += [self.reads.valid.eq(1), self.reads.payload.count.eq(header_words)]
                m.d.sync += left.eq(header_words)
                with m.If(self.reads.ready):
                    m.next = "HEADER"
            with m.State("HEADER"), m.If(taken):
                m.d.sync += [header.eq(Cat(header.as_value()[port:], data.payload)),
                             left.eq(left - 1)]
                with m.If(left == 1):
                    m.next = "JUDGE"
            with m.State("JUDGE"):
                m.d.sync += [left.eq(header.words - header_words), stages_left.eq(header.stages)]
                m.next = "ASK_BODY"
                for wrong, status in (
                    (header.words <= header_words, ImageStatus.DAMAGED),
                    (header.digest != format_digest(params), ImageStatus.OTHER_CORE),
                    (header.version != VERSION, ImageStatus.VERSION),
                    (header.magic != MAGIC, ImageStatus.NO_IMAGE),
                ):
                    with m.If(wrong):
                        m.d.sync += self.status.eq(status)
                        m.next = "DONE"
            with m.State("ASK_BODY"):
                m.d.comb += [self.reads.valid.eq(1), self.reads.payload.count.eq(left),
                             self.reads.payload.address.eq(header_words)]
                with m.If(self.reads.ready):
                    m.next = "BODY"
            with m.State("BODY"), m.If(taken):
                m.d.sync += [left.eq(left - 1), parts.eq(Cat(parts, data.payload)[port:]),
                             part.eq(Mux(last_part, 0, part + 1))]
                with m.If(last_part & stages_left.any()):
                    m.d.sync += [self.stage_valid.eq(1), stages_left.eq(stages_left - 1)]
                with m.If(left == 1):
                    m.next = "JUDGE_BODY"
            with m.State("JUDGE_BODY"):
                m.d.sync += self.status.eq(
                    Mux(crc == _RESIDUE, ImageStatus.RUNNING, ImageStatus.DAMAGED))
                m.next = "DONE"
            with m.State("DONE"):
                pass
        with m.If(self.stage_valid):
            m.d.sync += self.stage_index.eq(self.stage_index + 1)

    def _ask(self, m, header, queue):
        """Request groups while there is room for them; rows have priority."""
        params, reads = self.params, self.reads
        shape = StructLayout({
            "is_last": 1, "tiles": range(params.tiles + 1),
            "groups": range(params.most_headers + 1)})
        m.submodules.plan = store = memory.Memory(
            shape=shape, depth=max(params.stages, 2), init=[])
        write, read = store.write_port(), store.read_port()
        index = Signal(range(max(params.stages, 2)))
        m.d.comb += [
            write.addr.eq(self.stage_index), write.en.eq(self.stage_valid),
            write.data.is_last.eq(~self._stages_left.any()),
            write.data.tiles.eq(self.stage.tiles), write.data.groups.eq(self.stage.headers),
            read.addr.eq(index), read.en.eq(1),
        ]

        first = Signal(params.address_bits)     # of the groups
        address = Signal.like(first)
        stage = Signal(shape, reset_less=True)
        count = Signal.like(first, reset_less=True)
        free_words = Signal(range(params.ring + 1), init=params.ring)
        free_headers = Signal(range(params.ring + 1), init=params.ring)
        enough = Signal()
        begun = has_head = Const(1)
        if self._has_rows:
            begun, has_head = Signal(), Signal()
            row = Signal.like(first, reset_less=True)
            token = Signal(params.token_bits, reset_less=True)
            row_words = header.row[:params.row_parts(params.width).bit_length()]
        asked = Signal()
        m.d.sync += [
            enough.eq((free_words >= stage.tiles) & free_headers.any()),
            free_words.eq(free_words + self.word_used - Mux(asked, stage.tiles, 0)),
            free_headers.eq(free_headers + self.header_used - asked),
        ]
        tag = tag_layout(params)(queue.w_data)
        again = [index.eq(0), address.eq(first)]
        if self._has_rows:
            again.append(begun.eq(0))
        with m.FSM(name="ask"):
            with m.State("LOADING"):
                m.d.sync += [
                    first.eq(params.image_header_parts + constant_product(
                        header.stages[:len(self._stages_left)], params.stage_parts)),
                    address.eq(first)]
                with m.If(self.status == ImageStatus.RUNNING):
                    m.next = "READ"
            with m.State("READ"):
                m.next = "LOAD"
            with m.State("LOAD"):
                m.d.sync += [
                    stage.eq(read.data),
                    count.eq(constant_product(read.data.tiles, params.weight_parts)
                             + params.row_beats * params.header_parts)]
                m.next = "SETTLE"
            with m.State("SETTLE"):     # until `enough` is of this stage, with the room left now
                m.next = "CHOOSE"
            with m.State("CHOOSE"):
                if self._has_rows:
                    with m.If(self.tokens.valid & queue.w_rdy):
                        m.d.comb += self.tokens.ready.eq(1)
                        m.d.sync += token.eq(self.tokens.payload)
                        m.next = "TOKEN"
                    with m.Elif(stage.is_last & begun & ~has_head):
                        m.d.sync += again
                        m.next = "READ"
                with (m.Elif if self._has_rows else m.If)(
                        enough & queue.w_rdy & (~stage.is_last | begun)):
                    m.next = "GROUP"
            if self._has_rows:
                with m.State("TOKEN"):
                    m.d.sync += row.eq(token * row_words)
                    m.next = "ROW"
                with m.State("ROW"):
                    m.d.sync += row.eq(row + header.embedding)
                    m.next = "ASK_ROW"
                with m.State("ASK_ROW"):
                    m.d.comb += [reads.valid.eq(1), reads.payload.address.eq(row),
                                 reads.payload.count.eq(header.row), tag.is_row.eq(1)]
                    with m.If(reads.ready):
                        m.d.comb += queue.w_en.eq(1)
                        m.next = "CHOOSE"
            with m.State("GROUP"):
                m.d.comb += [reads.valid.eq(1), reads.payload.address.eq(address),
                             reads.payload.count.eq(count), tag.tiles.eq(stage.tiles)]
                with m.If(reads.ready):
                    m.d.comb += [queue.w_en.eq(1), asked.eq(1)]
                    m.d.sync += [address.eq(address + count), stage.groups.eq(stage.groups - 1)]
                    m.next = "SETTLE_ROOM"
                    with m.If(stage.groups == 1):
                        m.d.sync += index.eq(index + 1)
                        with m.If(stage.is_last):
                            m.d.sync += again
                        m.next = "READ"
            with m.State("SETTLE_ROOM"):
                m.next = "SETTLE"
        if self._has_rows:
            with m.If(self.begins):
                m.d.sync += [begun.eq(1), has_head.eq(self.predicts)]

    def _receive(self, m, header, queue):
        """Forward received words: decoded to the rings, or as rows."""
        params, data = self.params, self.data
        steps = Pipeline(m, Const(1))
        tag = tag_layout(params)(queue.r_data)
        most = max(params.header_parts, params.weight_parts, 2)
        part, beat = Signal(range(most)), Signal(range(max(params.row_beats, 2)))
        tile = Signal(range(max(params.tiles, 2)))
        in_weights = Signal()
        taken = Signal()
        last_part = part == Mux(in_weights, params.weight_parts - 1, params.header_parts - 1)
        takes = ~tag.is_row | self.rows.ready if self._has_rows else 1
        m.d.comb += [
            data.ready.eq((self.status == ImageStatus.LOADING) | (queue.r_rdy & takes)),
            taken.eq(data.valid & queue.r_rdy & ~tag.is_row),
        ]
        with m.If(taken):
            m.d.sync += part.eq(Mux(last_part, 0, part + 1))
            with m.If(last_part & ~in_weights):
                m.d.sync += [beat.eq(beat + 1), in_weights.eq(beat == params.row_beats - 1)]
            with m.If(last_part & in_weights):
                m.d.sync += tile.eq(tile + 1)
                with m.If(tile == tag.tiles - 1):
                    m.d.comb += queue.r_en.eq(1)
                    m.d.sync += [tile.eq(0), beat.eq(0), in_weights.eq(0)]
        if self._has_rows:
            row_word = Signal(params.address_bits)
            m.d.comb += [self.rows.valid.eq(data.valid & queue.r_rdy & tag.is_row),
                         self.rows.payload.eq(data.payload)]
            with m.If(self.rows.valid & self.rows.ready):
                m.d.sync += row_word.eq(row_word + 1)
                with m.If(row_word == header.row - 1):
                    m.d.comb += queue.r_en.eq(1)
                    m.d.sync += row_word.eq(0)

        word, header_word = Signal(self.weights.address.shape()), Signal(
            self.headers.address.shape())
        with m.If(taken & last_part):
            m.d.sync += [word.eq(word + in_weights), header_word.eq(header_word + ~in_weights)]
        codes, latency = _decoded(steps, data.payload)
        m.d.comb += self.weights.codes.eq(codes)
        for fill, is_own, place, delay in (
            (self.weights, in_weights, word, latency), (self.headers, ~in_weights, header_word, 1),
        ):
            name = "weights" if fill is self.weights else "headers"
            m.d.comb += [
                fill.valid.eq(steps.flags(taken & is_own, delay, f"{name}_valid")[-1]),
                fill.part.eq(steps.delay(part, delay, f"{name}_part")),
                fill.last.eq(steps.delay(last_part, delay, f"{name}_last")),
                fill.address.eq(steps.delay(place, delay, f"{name}_address")),
            ]
        m.d.comb += self.headers.bits.eq(steps.delay(data.payload, 1, "headers_bits"))


def port_section(params: Geometry) -> str:
    """README section on the port."""
    return _PORT.format(file=IMAGE_FILE, bits=params.port_bits, patience=params.patience)


_PORT = """\
## Memory

The unit reads its model from a memory of {bits} bits: `reads` asks for `count` words from `address`
on, `data` takes them in that order. `{file}` (for `$readmemh`) has all of them, from address 0 on;
any image of a model within the limits in `params.json` will do. After a reset the unit reads the
image once and checks it: `status` says what became of that. High on `failed`, or {patience} cycles
without an answer, stop it until the next reset. Reset the memory's port with the unit: what it
still sends for an older request would be taken for the new one.
"""


def header_layout() -> StructLayout:
    """:class:`~sterna.hw.core.image.linear.ImageHeader` in bits."""
    names = [field.name for field in fields(ImageHeader)]
    return StructLayout(
        dict.fromkeys(names, 32) | {"unused": IMAGE_HEADER_BITS - 32 * len(names)})


def tag_layout(params: Geometry) -> StructLayout:
    return StructLayout({"is_row": 1, "tiles": range(params.tiles + 1)})


def _crc_after(crc: Value, word: Value) -> Value:
    """Return a CRC-32 updated with a word, as in zlib: the lowest bit first."""
    inputs = Cat(crc, word)
    bits = [1 << index for index in range(32)]    # mask of the inputs added in each bit
    for index in range(len(word)):
        out = bits[0] ^ 1 << 32 + index
        bits = [each ^ (out if place in _CRC_TAPS else 0)
                for place, each in enumerate([*bits[1:], 0])]
    return Cat((inputs & mask).xor() for mask in bits)


def _decoded(steps: Pipeline, word: Value) -> tuple[Value, int]:
    """Return the codes of the weights in a word of the port, and their latency in steps.

    A digit is the carry out of a byte multiplied by three, see
    :mod:`sterna.hw.core.image.linear`.
    """
    codes = []
    for number in range(len(word) // 8):
        left = word[8 * number:8 * number + 8]
        for place in range(TRITS_PER_BYTE):
            tripled = steps.register((left + (left << 1))[:10], f"tripled{number}_{place}")
            left, digit = tripled[:8], tripled[8:]
            codes.append(steps.delay(
                Cat(digit.any(), digit[1]), TRITS_PER_BYTE - 1 - place, f"code{number}_{place}"))
    return Cat(codes), TRITS_PER_BYTE
