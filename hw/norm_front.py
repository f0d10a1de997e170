"""Where a vector waits for NormQuant: its buffer and its absolute maximum."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.memory_attributes import BLOCK_RAM
from sterna.hw.norm_params import NormParams
from sterna.hw.pipeline import Pipeline

__all__ = ["NormFront"]


class NormFront(wiring.Component):
    """The buffer of one sequence, written word by word, and the running maximum of |y|.

    Takes a word per cycle until a vector is complete, and no more until ``release``.
    ``waiting`` rises ``params.max_steps`` cycles after the last word, with the maximum
    beside it, and falls after ``serve``.

    Parameters
    ----------
    params
        Geometry and formats.

    Members
    -------
    words : ``In(stream.Signature(params.word_layout))``
        Words of a vector; at most ``params.words(channels)``.
    waiting, maximum : ``Out(1)``, ``Out(unsigned(params.y_bits))``
        Whether a vector is complete, and its absolute maximum.
    serve : ``In(1)``
        The maximum has been used; the next one starts from 0.
    release : ``In(1)``
        The buffer has been read; at least two cycles after ``serve``.
    last_chunk, filled : ``Out(range(params.depth))``, ``Out(unsigned(params.banks))``
        Address of the vector's last chunk, and which banks have a word in it.
    read, address : ``In(1)``, ``In(range(params.depth))``
        Read a chunk of a complete vector; not after ``release``.
    chunk : ``Out(ArrayLayout(signed(params.y_bits), params.lanes))``
        The chunk, from the cycle after ``read`` to the next ``read``.
    """

    def __init__(self, params: NormParams) -> None:
        self.params = params
        super().__init__({
            "words": In(stream.Signature(params.word_layout)),
            "waiting": Out(1),
            "maximum": Out(unsigned(params.y_bits)),
            "serve": In(1),
            "release": In(1),
            "last_chunk": Out(range(params.depth)),
            "filled": Out(unsigned(params.banks)),
            "read": In(1),
            "address": In(range(params.depth)),
            "chunk": Out(ArrayLayout(signed(params.y_bits), params.lanes)),
        })

    def elaborate(self, platform):
        m = Module()
        full = Signal()
        taken = Signal()
        m.d.comb += [
            self.words.ready.eq(~full),
            taken.eq(self.words.valid & ~full),
        ]
        with m.If(taken & self.words.payload.last):
            m.d.sync += full.eq(1)
        with m.Elif(self.release):
            m.d.sync += full.eq(0)
        self._store(m, taken, full)
        self._find_maximum(m, taken)
        return m

    def _store(self, m, taken, full):
        """Word i of a vector goes to bank ``i % banks``, address ``i // banks``."""
        params, word = self.params, self.words.payload
        address = Signal(range(params.depth))
        # One-hot: the bank that is next.
        bank = Signal(params.banks, init=1)

        with m.If(taken):
            m.d.sync += bank.eq(Cat(bank[-1], bank)[:params.banks])
            with m.If(bank[-1]):
                m.d.sync += address.eq(address + 1)
            with m.If(word.last):
                # The banks up to this one: those above it are not among the negatives.
                m.d.sync += [
                    address.eq(0), bank.eq(1),
                    self.last_chunk.eq(address),
                    self.filled.eq(Cat(bank[i:].any() for i in range(params.banks))),
                ]

        # Written only while not full and read only while full: a memory need not care what a
        # read returns of a word that is being written.
        for index in range(params.banks):
            m.submodules[f"bank{index}"] = buffer = memory.Memory(
                shape=word.y.shape(), depth=params.depth, init=[],
                attrs=BLOCK_RAM)
            write, read = buffer.write_port(), buffer.read_port()
            m.d.comb += [
                write.addr.eq(address),
                write.data.eq(word.y),
                write.en.eq(taken & bank[index]),
                read.addr.eq(self.address),
                read.en.eq(self.read & full),
            ]
            for row in range(params.rows):
                m.d.comb += self.chunk[index * params.rows + row].eq(read.data[row])

    def _find_maximum(self, m, taken):
        params, word = self.params, self.words.payload
        steps = Pipeline(m, Const(1))
        arrived = steps.flags(taken, params.max_steps - 1, "arrived")[-1]
        complete = steps.flags(taken & word.last, params.max_steps - 1, "complete")[-1]

        # Neighbours are compared level by level, after the first level two in a cycle.
        level = [_absolute(word.y[row]) for row in range(params.rows)]
        for depth in range(1, params.max_levels + 1):
            level = [_larger(*level[i:i + 2]) for i in range(0, len(level), 2)]
            if depth % 2:
                level = [steps.register(value, f"level{depth}_{index}")
                         for index, value in enumerate(level)]
        if params.max_levels == 0:
            level = [steps.register(level[0], "magnitude")]

        with m.If(self.serve):
            m.d.sync += [self.maximum.eq(0), self.waiting.eq(0)]
        with m.Elif(arrived):
            m.d.sync += [self.maximum.eq(_larger(self.maximum, level[0])),
                         self.waiting.eq(complete)]


def _absolute(value: Value) -> Value:
    """Return the magnitude, unsigned and as wide as the signed value."""
    return Mux(value[-1], -value, value)[:len(value)]


def _larger(first: Value, *second: Value) -> Value:
    """Return the larger of one or two values."""
    return Mux(second[0] > first, second[0], first) if second else first
