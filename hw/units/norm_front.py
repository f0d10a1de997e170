"""Where a vector waits for NormQuant: its buffer and its absolute maximum."""

from __future__ import annotations

from functools import reduce
from operator import and_, or_

from amaranth.hdl import Cat, Const, Module, Signal, Value, signed, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.memory_attributes import BLOCK_RAM, NEVER_COLLIDES
from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.units.norm_params import NormParams

__all__ = ["NormFront"]

_LUT_DEPTH = 16
"""Words of a memory up to which it is made of LUTs."""


class NormFront(wiring.Component):
    """The buffer of one sequence, written word by word, and the running maximum of |y|.

    Takes a word per cycle until a vector is complete, and no more until ``release``.
    ``waiting`` rises ``params.max_steps`` cycles after the last word, with the maximum
    beside it, and falls after ``serve``.

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
        Take a step in the reading of a complete vector; not after ``release``.
    chunk : ``Out(ArrayLayout(signed(params.y_bits), params.lanes))``
        The chunk of the address of two steps before.
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

        # Written only while not full and read only while full. A shallow memory is cheaper
        # in LUTs than in blocks, which are wide and then mostly empty: that is left to the tool.
        attrs = {} if params.depth <= _LUT_DEPTH else BLOCK_RAM | NEVER_COLLIDES
        for index in range(params.banks):
            m.submodules[f"bank{index}"] = buffer = memory.Memory(
                shape=word.y.shape(), depth=params.depth, init=[], attrs=attrs)
            write = buffer.write_port()
            read = buffer.read_port()
            m.d.comb += [
                write.addr.eq(address),
                write.data.eq(word.y),
                write.en.eq(taken & bank[index]),
                read.addr.eq(self.address),
                read.en.eq(self.read & full),
            ]
            # A register of just the data can become the memory's own.
            steps = Pipeline(m, self.read & full)
            for row in range(params.rows):
                m.d.comb += self.chunk[index * params.rows + row].eq(
                    steps.register(read.data[row], f"y{index}_{row}"))

    def _find_maximum(self, m, taken):
        params, word = self.params, self.words.payload
        steps = Pipeline(m, Const(1))
        arrived = steps.flags(taken, params.max_steps - 1, "arrived")[-1]
        complete = steps.flags(taken & word.last, params.max_steps - 1, "complete")[-1]

        keys = [steps.register(_key(word.y[row]), f"key{row}") for row in range(params.rows)]
        for step in range(1, len(params.max_groups)):
            groups = [keys[i:i + 4] for i in range(0, len(keys), 4)]
            keys = [steps.register(_select(_largest(m, group), group), f"key{step}_{index}")
                    for index, group in enumerate(groups)]

        # The key of the maximum is kept beside it, so that only keys are compared. That it
        # stays is an enable, off the way of the data.
        key = Signal(params.y_bits)
        stays = Signal()
        m.d.comb += stays.eq(Cat(key >= each for each in keys).all())
        first = _largest(m, keys)
        magnitudes = [(each[1:] + each[0])[:params.y_bits] for each in keys]
        with m.If(self.serve):
            m.d.sync += [key.eq(0), self.maximum.eq(0)]
        with m.Elif(arrived & ~stays):
            m.d.sync += [key.eq(_select(first, keys)),
                         self.maximum.eq(_select(first, magnitudes))]
        with m.If(self.serve):
            m.d.sync += self.waiting.eq(0)
        with m.Elif(arrived):
            m.d.sync += self.waiting.eq(complete)


def _key(value: Value) -> Value:
    """Return an unsigned number, as wide as the signed value, in the order of magnitudes.

    It is the one's complement magnitude, and the sign below it: no carry. The magnitude is
    the sum of the two, so a key is never below that of a smaller magnitude.
    """
    sign = value[-1]
    return Cat(sign, value[:-1] ^ sign.replicate(len(value) - 1))


def _largest(m: Module, values: list[Value]) -> Signal:
    """Return a flag for each value: whether it is the first that no other is above."""
    not_below = {(i, j): values[i] >= values[j]
                 for j in range(len(values)) for i in range(j)}
    largest = Signal(len(values), name="largest")
    m.d.comb += largest.eq(Cat(
        reduce(and_, [*(~not_below[i, place] for i in range(place)),
                      *(not_below[place, j] for j in range(place + 1, len(values)))], Const(1, 1))
        for place in range(len(values))))
    return largest


def _select(flags: Value, values: list[Value]) -> Value:
    """Return the value, all as wide, whose flag is high."""
    return reduce(or_, (value & flag.replicate(len(value))
                        for value, flag in zip(values, flags, strict=True)))
