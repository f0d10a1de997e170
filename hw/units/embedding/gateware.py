"""The embedding in gateware: a token in, its vector out word by word."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.bits import to_bits, to_ints
from sterna.hw.parts.constant_product import constant_product
from sterna.hw.parts.memory_attributes import BLOCK_ROM
from sterna.hw.parts.pipeline import Pipeline, advance_of
from sterna.hw.units.embedding.params import EmbeddingParams

__all__ = ["Embedding"]


class Embedding(wiring.Component):
    """The vector of a token, from a memory with a word for every ``rows`` channels.

    The first word is offered ``params.latency`` cycles after its request is taken, then
    one per cycle; they stall only while a word waits to be taken. The next request is
    taken once the last word has been, not before. A token past the vocabulary must not
    come: its words mean nothing.

    The memory stores no more bits than its values need; the words are sign-extended.

    Parameters
    ----------
    params
        Geometry and formats; :meth:`EmbeddingParams.for_table` fits them to a table.
    table
        Integers ``[vocab][channels]``.

    Members
    -------
    requests : ``In(stream.Signature(params.request_layout))``
        ``token``, and ``sequence`` if there are several.
    words : ``Out(stream.Signature(params.word_layout))``
        ``x`` of each channel of a word, ``last`` on the last word of the vector, and the
        ``sequence`` of its request if there are several.

    Raises
    ------
    ValueError
        If the table has another shape, or an element more bits.
    """

    def __init__(
        self, params: EmbeddingParams, table: Sequence[Sequence[int]] | np.ndarray,
    ) -> None:
        self.params = params
        self._words = _table_words(params.checked_table(table), params)
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
