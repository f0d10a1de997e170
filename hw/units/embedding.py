"""The embedding table: a token in, its vector out word by word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from amaranth.hdl import Cat, Module, Mux, Shape, Signal, signed, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.arithmetic import constant_product
from sterna.hw.parts.bits import signed_bits, to_bits, to_ints
from sterna.hw.parts.memory_attributes import BLOCK_ROM
from sterna.hw.parts.pipeline import Pipeline, advance_of
from sterna.hw.parts.sequence import Interleaved
from sterna.model.profile import NumericProfile

__all__ = ["Embedding", "EmbeddingParams"]


@dataclass(frozen=True, slots=True)
class EmbeddingParams(Interleaved):
    """Geometry and formats of an embedding.

    >>> from sterna.model.profile import C12
    >>> params = EmbeddingParams(C12, 8, vocab=256, channels=130, element_bits=8)
    >>> params.words, params.depth, params.word_bits, params.request_spacing
    (17, 4352, 64, 20)
    """

    profile: NumericProfile  # formats; `profile.x` is that of the vectors
    rows: int  # channels given per word
    # shape of the table
    vocab: int
    channels: int
    element_bits: int  # signed bits of an element of the table as stored
    sequences: int = 1  # interleaved sequences, 1 or 2
    stalls: bool = True  # whether words may have to wait to be taken

    # Cycles from a request taken to its first word: address, memory, output register.
    latency: ClassVar[int] = 3

    @property
    def token_bits(self) -> int:
        return max((self.vocab - 1).bit_length(), 1)

    def for_table(self, table: Sequence[Sequence[int]] | np.ndarray) -> EmbeddingParams:
        """Return the same with no more bits an element than a table needs."""
        return replace(self, element_bits=signed_bits(np.asarray(table)))

    @property
    def words(self) -> int:
        """Words of a vector; the last is filled up with zeros."""
        return -(-self.channels // self.rows)

    @property
    def depth(self) -> int:
        """Words of the memory: a memory without an address is no valid Verilog."""
        return max(self.vocab * self.words, 2)

    @property
    def word_bits(self) -> int:
        """Bits of a word of the memory."""
        return self.rows * self.element_bits

    @property
    def part_bits(self) -> int:
        """Bits of a word that lie in a memory of their own: as many as a block of 2^14 bits has
        at this depth, so that no multiplexer stands between the blocks and their output
        registers.
        """
        return min(max((1 << 14) >> (self.depth - 1).bit_length(), 1), self.word_bits)

    @property
    def parts(self) -> int:
        """Memories side by side."""
        return -(-self.word_bits // self.part_bits)

    @property
    def request_spacing(self) -> int:
        """Cycles from one request taken to the next, if it waits and no word has to."""
        return self.latency + self.words

    @property
    def request_layout(self) -> StructLayout:
        return StructLayout({"token": unsigned(self.token_bits)} | self.sequence_field)

    @property
    def word_layout(self) -> StructLayout:
        fields: dict[str, Shape | ArrayLayout | int] = {
            "x": ArrayLayout(signed(self.profile.x.bits), self.rows), "last": 1}
        return StructLayout(fields | self.sequence_field)


class Embedding(wiring.Component):
    """The vector of a token, from a memory with a word for every ``rows`` channels.

    The first word is offered ``params.latency`` cycles after its request is taken, then one per
    cycle; they stall only while a word waits to be taken. The next request is taken once the
    last word has been, not before. A token past the vocabulary must not come. The memory stores
    no more bits than its values need; the words are sign-extended.
    """

    def __init__(
        self, params: EmbeddingParams, table: Sequence[Sequence[int]] | np.ndarray,
    ) -> None:
        self.params = params
        self._words = _table_words(np.asarray(table), params)
        super().__init__({
            "requests": In(stream.Signature(params.request_layout)),
            "words": Out(stream.Signature(params.word_layout, always_ready=not params.stalls)),
        })

    def elaborate(self, platform):
        m = Module()
        params, requests, words = self.params, self.requests, self.words
        reading = Signal()
        position = Signal(range(max(params.words, 2)))    # a bit at least
        address = Signal(range(params.depth), reset_less=True)
        is_last = Signal()
        advance = advance_of(words, stalls=params.stalls)
        steps = Pipeline(m, advance)
        # A word is at the output of the memory, then in its output register.
        filled = steps.flags(reading, 2, "filled")
        m.d.comb += [
            requests.ready.eq(~(reading | filled[1] | filled[2])),
            is_last.eq(position == params.words - 1),
            words.valid.eq(filled[2]),
            words.payload.last.eq(steps.delay(is_last, 2, "last")),
        ]
        with m.If(requests.valid & requests.ready):
            # Below ``depth`` for every token of the vocabulary.
            first = constant_product(requests.payload.token, params.words)
            m.d.sync += [reading.eq(1), address.eq(first[:len(address)])]
            if params.sequences > 1:
                m.d.sync += words.payload.sequence.eq(requests.payload.sequence)
        with m.Elif(reading & advance):
            m.d.sync += [
                reading.eq(~is_last),
                position.eq(Mux(is_last, 0, position + 1)),
                address.eq(address + 1),
            ]
        word = Cat(steps.register(self._read(m, part, advance, address), f"word{part}")
                   for part in range(params.parts))
        for row in range(params.rows):
            element = word.word_select(row, params.element_bits)
            m.d.comb += words.payload.x[row].eq(element.as_signed())
        return m

    def _read(self, m, part, advance, address):
        """Return a part of the word at an address, a step later."""
        params = self.params
        low = part * params.part_bits
        bits = min(params.part_bits, params.word_bits - low)
        m.submodules[f"rom{part}"] = rom = memory.Memory(
            shape=unsigned(bits), depth=params.depth,
            init=[word >> low & (1 << bits) - 1 for word in self._words], attrs=BLOCK_ROM)
        port = rom.read_port()
        m.d.comb += [port.addr.eq(address), port.en.eq(advance)]
        return port.data


def _table_words(values: np.ndarray, params: EmbeddingParams) -> list[int]:
    padded = np.zeros((params.vocab, params.words * params.rows), dtype=np.int64)
    padded[:, :params.channels] = values
    return to_ints(to_bits(padded.reshape(-1, params.rows), params.element_bits))
