"""A memory that streams runs of its words: the weights of a model that fits on the chip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.memory_attributes import rom_of
from sterna.hw.parts.pipeline import advance_of
from sterna.model.checks import check_whole

__all__ = ["WeightRom", "WeightRomParams"]


@dataclass(frozen=True, slots=True)
class WeightRomParams:
    """Geometry of a weight memory.

    >>> params = WeightRomParams(words=1000, word_bits=2048)
    >>> params.address_bits, params.count_bits, params.latency
    (10, 10, 2)
    """

    words: int  # words that it holds
    word_bits: int  # bits of a word

    latency: ClassVar[int] = 2  # cycles from a request taken while idle to its first word

    def __post_init__(self) -> None:
        check_whole("words", self.words, 1, 1 << 28)
        check_whole("word_bits", self.word_bits, 1, 1 << 20)

    @property
    def depth(self) -> int:
        """Words of the memory: a memory without an address is no valid Verilog."""
        return max(self.words, 2)

    @property
    def address_bits(self) -> int:
        """Bits of the number of a word."""
        return (self.depth - 1).bit_length()

    @property
    def count_bits(self) -> int:
        """Bits of a number of words, 1 to all of them."""
        return self.words.bit_length()

    @property
    def request_layout(self) -> StructLayout:
        return StructLayout({
            "first": unsigned(self.address_bits), "count": unsigned(self.count_bits)})


class WeightRom(wiring.Component):
    """Answers each request with a run of words, one per cycle.

    It holds a request in progress and one that waits, and takes a request whenever it has room
    for one. An idle memory offers the first word ``params.latency`` cycles after it took the
    request. The words of a request that waits, or that is taken no later than one cycle before
    the last word of the request in progress is offered, follow without a gap. Words stall only
    while one waits to be taken; past the end of the memory they mean nothing.
    """

    def __init__(self, params: WeightRomParams, words: Sequence[int]) -> None:
        if len(words) != params.words:
            raise ValueError(f"the memory holds {params.words} words, got {len(words)}")
        for index, word in enumerate(words):
            if not 0 <= word < 1 << params.word_bits:
                raise ValueError(
                    f"every word must fit {params.word_bits} unsigned bits, "
                    f"word {index} is {word}")
        self.params = params
        self._words = [int(word) for word in words]
        super().__init__({
            "requests": In(stream.Signature(params.request_layout)),
            "beats": Out(stream.Signature(params.word_bits)),
        })

    def elaborate(self, platform):
        m = Module()
        params, requests, beats = self.params, self.requests, self.beats
        m.submodules.rom = rom = memory.Memory(
            shape=unsigned(params.word_bits), depth=params.depth, init=self._words,
            attrs=rom_of(params.depth))
        port = rom.read_port()

        reading = Signal()
        address = Signal(params.address_bits, reset_less=True)
        more = Signal(params.count_bits, reset_less=True)      # words after this one
        is_waiting = Signal()
        waiting = Signal(params.request_layout, reset_less=True)

        advance = Signal()
        is_free = Signal()
        taken = Signal()
        m.d.comb += [
            advance.eq(advance_of(beats, stalls=True)),
            # This cycle reads the last word of the request in progress, or there is none.
            is_free.eq(~reading | (advance & ~more.any())),
            requests.ready.eq(~is_waiting),
            taken.eq(requests.valid & requests.ready),
            port.addr.eq(address),
            port.en.eq(advance & reading),
            beats.payload.eq(port.data),
        ]
        with m.If(advance):
            m.d.sync += beats.valid.eq(reading)
        with m.If(advance & reading):
            m.d.sync += [address.eq(address + 1), more.eq(more - 1)]

        # Requests go the shortest way: into progress at once if there is nothing before them.
        with m.If(is_free):
            m.d.sync += reading.eq(is_waiting | taken)
            with m.If(is_waiting):
                m.d.sync += [
                    address.eq(waiting.first), more.eq(waiting.count - 1), is_waiting.eq(0)]
            with m.Else():
                m.d.sync += [
                    address.eq(requests.payload.first), more.eq(requests.payload.count - 1)]
        with m.Elif(taken):
            m.d.sync += [waiting.eq(requests.payload), is_waiting.eq(1)]
        return m
