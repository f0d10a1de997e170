"""The vectors of the sequences of a phase, stored between results and norm."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, signed
from amaranth.lib import memory, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.params.geometry import Geometry
from sterna.hw.parts.memory_attributes import BLOCK_RAM, NEVER_COLLIDES
from sterna.hw.parts.pipeline import Pipeline

__all__ = ["VectorStore", "element_layout"]


def element_layout(params: Geometry) -> StructLayout:
    """Some channels of a vector.

    ``place``: index of the first one, in units of ``cell_lanes``. ``wide``: ``post_lanes``
    channels, not ``cell_lanes``. ``first`` and ``last`` of the vector.
    """
    return StructLayout({
        "sequence": params.batch_bits, "place": range(params.widest // params.cell_lanes),
        "wide": 1, "first": 1, "last": 1,
        "y": ArrayLayout(signed(params.norm.y_bits), params.post_lanes)})


class VectorStore(wiring.Component):
    """Stores a vector of every sequence and its largest magnitude.

    Members
    -------
    elements, elements_valid : ``In``
        Channels to be written; lanes beyond ``cell_lanes`` are used only if ``wide``.
    complete : ``Out(1)``
        The last channels of a vector have been written; its maximum is readable from two cycles
        later on.
    sequence, maximum
        A sequence, and its maximum in the same cycle.
    read_sequence, chunk, word
        Chunk to read; ``word`` follows two cycles later.
    """

    def __init__(self, params: Geometry) -> None:
        self.params = params
        bits = params.norm.y_bits
        super().__init__({
            "elements": In(element_layout(params)),
            "elements_valid": In(1),
            "complete": Out(1),
            "sequence": In(params.batch_bits),
            "maximum": Out(bits),
            "read_sequence": In(params.batch_bits),
            "chunk": In(range(params.chunks)),
            "word": Out(ArrayLayout(signed(bits), params.quant_lanes)),
        })

    def elaborate(self, platform):
        m = Module()
        self._store(m)
        self._find_maximum(m)
        return m

    def _store(self, m):
        params = self.params
        steps = Pipeline(m, Const(1))
        # A cycle for routing to the memory: the maximum takes longer.
        elements = self.elements.shape()(steps.register(self.elements, "late"))
        valid = steps.flags(self.elements_valid, 1, "late_valid")[-1]
        m.submodules.store = store = memory.Memory(
            shape=self.word.shape(), depth=params.batch << len(self.chunk), init=[],
            attrs=BLOCK_RAM | NEVER_COLLIDES)
        write, read = store.write_port(granularity=params.cell_lanes), store.read_port()
        parts = params.quant_lanes // params.cell_lanes
        part_bits = parts.bit_length() - 1
        part, chunk = elements.place[:part_bits], elements.place[part_bits:]
        wide = (1 << params.post_lanes // params.cell_lanes) - 1
        bits = (params.batch - 1).bit_length()
        m.d.comb += [
            write.addr.eq(Cat(chunk[:len(self.chunk)], elements.sequence[:bits])),
            write.en.eq(Mux(valid, Mux(elements.wide, wide, 1) << part, 0)),
            read.addr.eq(Cat(self.chunk, self.read_sequence[:bits])),
            read.en.eq(1),
            self.word.eq(steps.register(read.data, "word")),
        ]
        # Narrow elements are copied to each part.
        for lane in range(params.quant_lanes):
            m.d.comb += write.data[lane].eq(Mux(
                elements.wide, elements.y[lane % params.post_lanes],
                elements.y[lane % params.cell_lanes]))

    def _find_maximum(self, m):
        params, elements = self.params, self.elements
        steps = Pipeline(m, Const(1))
        depth = (params.post_lanes - 1).bit_length()
        valid = steps.flags(self.elements_valid, depth, "keyed")
        keys = [_key(y) & (elements.wide if lane >= params.cell_lanes else Const(1)).replicate(
                    len(y)) for lane, y in enumerate(elements.y)]
        for level in range(depth):
            keys = [steps.register(key, f"key{level}_{index}") for index, key in enumerate(keys)]
            keys = [Mux(a >= b, a, b) for a, b in zip(keys[::2], keys[1::2], strict=True)]
        # An invalid key exceeds none, that of a first element exceeds all.
        first = steps.delay(elements.first, depth, "first")
        key = Cat(keys[0], first) & valid[-1].replicate(params.norm.y_bits + 1)
        key = steps.register(key, "key")
        sequence = steps.delay(elements.sequence, depth + 1, "sequence")

        m.submodules.largest = largest = memory.Memory(
            shape=params.norm.y_bits, depth=max(params.batch, 2), init=[], attrs=NEVER_COLLIDES)
        write = largest.write_port()
        before, read = (largest.read_port(domain="comb") for _ in range(2))
        m.d.comb += [
            before.addr.eq(sequence), write.addr.eq(sequence), write.data.eq(key[:-1]),
            write.en.eq(key > before.data), read.addr.eq(self.sequence),
            # The magnitude of the largest key.
            self.maximum.eq(read.data[1:] + read.data[0]),
            self.complete.eq(
                steps.flags(self.elements_valid & elements.last, depth, "complete")[-1]),
        ]


def _key(value):
    """Return an unsigned number, as wide as the signed value, ordered by magnitude: the one's
    complement magnitude above the sign bit. The magnitude is the sum of the two."""
    sign = value[-1]
    return Cat(sign, value[:-1] ^ sign.replicate(len(value) - 1))
