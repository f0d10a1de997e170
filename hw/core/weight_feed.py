"""Weight words for the array, from a memory inside or from a port."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.core.plan.image import CoreImage
from sterna.hw.core.plan.tasks import weight_request_layout
from sterna.hw.parts.memory_attributes import BLOCK_ROM
from sterna.hw.parts.pipeline import Pipeline

__all__ = ["WeightFeed", "WeightPort"]

_STEPS = 2
"""Steps from ``take`` to the word: what a block RAM with its output register needs."""


def _members(image: CoreImage) -> dict[str, In | Out]:
    return {
        "advance": In(1),
        "available": Out(1),
        "take": In(1),
        "word": Out(unsigned(image.params.weight_bits)),
    }


class WeightFeed(wiring.Component):
    """The weights of a model in a block ROM, run by run as they are asked for.

    The word that is next is read in every step, so that nothing but a register stands
    between the address and the memory, and nothing at all between the memory and the
    register behind it.

    Parameters
    ----------
    image
        Contents of the memory.

    Members
    -------
    requests : ``In(stream.Signature(weight_request_layout(image)))``
        First word of a run, and how many. The next one is taken with the last word of a
        run, so that runs follow each other without a gap.
    advance : ``In(1)``
        Step in this cycle.
    available, take : ``Out(1)``, ``In(1)``
        Whether there is a word; take it in this step.
    word : ``Out(unsigned(weight_bits))``
        The word, ``WeightFeed.steps`` steps after it was taken.
    """

    steps = _STEPS

    def __init__(self, image: CoreImage) -> None:
        self.image = image
        super().__init__({
            "requests": In(stream.Signature(weight_request_layout(image))), **_members(image)})

    def elaborate(self, platform):
        m = Module()
        request = self.requests.payload
        m.submodules.rom = rom = memory.Memory(
            shape=unsigned(self.image.params.weight_bits),
            depth=max(len(self.image.weights), 2), init=self.image.weights, attrs=BLOCK_ROM)
        port = rom.read_port()
        steps = Pipeline(m, self.advance)

        address = Signal(request.first.shape(), reset_less=True)
        left = Signal(request.count.shape())
        last = Signal()
        taken = Signal()
        m.d.comb += [
            taken.eq(self.take & self.advance),
            self.requests.ready.eq(~self.available | (taken & last)),
            port.addr.eq(address),
            port.en.eq(self.advance),
            self.word.eq(steps.register(port.data, "word")),
        ]
        with m.If(self.requests.ready):
            m.d.sync += [
                self.available.eq(self.requests.valid), address.eq(request.first),
                left.eq(request.count), last.eq(request.count == 1)]
        with m.Elif(taken):
            m.d.sync += [
                address.eq(address + 1), left.eq(left - 1), last.eq(left == 2)]
        return m


class WeightPort(wiring.Component):
    """Weights that come in through a port, one word after the other.

    Parameters
    ----------
    image
        Gives the widths.

    Members
    -------
    words : ``In(stream.Signature(weight_bits))``
    advance, available, take, word
        As those of :class:`WeightFeed`.
    """

    steps = _STEPS

    def __init__(self, image: CoreImage) -> None:
        super().__init__({
            "words": In(stream.Signature(image.params.weight_bits)), **_members(image)})

    def elaborate(self, platform):
        m = Module()
        steps = Pipeline(m, self.advance)
        m.d.comb += [
            self.available.eq(self.words.valid),
            self.words.ready.eq(self.take & self.advance),
            self.word.eq(steps.delay(self.words.payload, self.steps, "word")),
        ]
        return m
