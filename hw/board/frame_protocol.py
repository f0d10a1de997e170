"""The protocol of a network on the serial line of a board: numbers of frames to it, results back.

Orders and bytes are those of :mod:`sterna.hw.board.serial_protocol`. FEED takes a number of a
frame, 16 bits of two's complement, channel by channel, and is answered by DONE; the last one of a
frame first by its results, each sent as a token of 16 bits of two's complement. RESTART: the next
frame begins a sequence. STOP forgets a frame that is not complete, and the sequence.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import View
from amaranth.lib.wiring import In, Out

from sterna.hw.board.serial_protocol import Answer, Order, places_of, write_byte
from sterna.hw.layers.layer_params import LayerParams
from sterna.model.layers.layer import FRAME_BITS

__all__ = ["NUMBER_BITS", "FrameProtocol", "check_network"]

NUMBER_BITS = 16
"""Of a number of a frame and of a result on the line."""

_LOW_BITS = 7


def check_network(params: LayerParams) -> None:
    """Refuse a network that one cannot talk to: of one sequence, with results of up to 16 bits."""
    if params.sequences != 1:
        raise ValueError(f"a serial line has one sequence, the network {params.sequences}")
    if params.profile.logit.bits > NUMBER_BITS:
        raise ValueError(
            f"over a serial line results have at most {NUMBER_BITS} bits, got "
            f"{params.profile.logit.bits}")


class FrameProtocol(wiring.Component):
    """Obeys orders with the unit of a network, which is to be reset with ``stop``.

    Members
    -------
    received : ``In(stream.Signature(8))``
        Bytes from the line, but for STOP.
    stop : ``In(1)``
        STOP was received. What was received before it should not come any more.
    sent : ``Out(stream.Signature(8))``
        Bytes to the line.
    vectors : ``Out(stream.Signature(params.vector_layout))``
        Frames to the unit.
    results : ``In(stream.Signature(params.result_layout("y", {})))``
        Results of the unit.
    """

    def __init__(self, params: LayerParams) -> None:
        check_network(params)
        self.params = params
        super().__init__({
            "received": In(stream.Signature(8)), "stop": In(1), "sent": Out(stream.Signature(8)),
            "vectors": Out(stream.Signature(params.vector_layout)),
            "results": In(stream.Signature(params.result_layout("y", params.sequence_field)))})

    def elaborate(self, platform):
        m = Module()
        params, lanes = self.params, self.params.post_lanes
        argument, order, answer = Signal(FRAME_BITS), Signal(8), Signal(8)
        stopping, fresh = Signal(init=1), Signal(init=1)
        channel, lane = Signal(range(params.channels)), Signal(range(max(lanes, 2)))
        ends = channel == params.channels - 1
        vector = View(params.vector_layout, Signal(params.vector_layout.size))
        m.d.comb += self.vectors.payload.eq(vector)

        def say(what: Answer):
            m.d.sync += answer.eq(what)
            m.next = "Answer"

        with m.FSM():
            with m.State("Listen"):
                m.d.comb += self.received.ready.eq(~stopping)
                with m.If(stopping):
                    m.d.sync += [stopping.eq(0), fresh.eq(1), channel.eq(0), lane.eq(0),
                                 vector.eq(0)]
                    say(Answer.STOPPED)
                with m.Elif(self.received.valid):
                    m.d.sync += order.eq(self.received.payload)
                    with m.If(self.received.payload[-1]):
                        m.next = "Obey"
                    with m.Else():
                        m.d.sync += argument.eq(
                            Cat(self.received.payload[:_LOW_BITS], argument))

            with m.State("Obey"):
                say(Answer.REFUSED)
                with m.Switch(order):
                    with m.Case(Order.RESTART), m.If(channel == 0):
                        m.d.sync += fresh.eq(1)
                        say(Answer.DONE)
                    with m.Case(Order.FEED):
                        with m.Switch(lane):
                            for index in range(lanes):
                                with m.Case(index):
                                    m.d.sync += vector.x[index].eq(argument)
                        m.d.sync += lane.eq(Mux(lane == lanes - 1, 0, lane + 1))
                        if params.has_state:
                            m.d.sync += vector.start.eq(fresh)
                        with m.If(ends | (lane == lanes - 1)):
                            m.next = "Feed"
                        with m.Else():
                            m.d.sync += channel.eq(channel + 1)
                            say(Answer.DONE)

            with m.State("Feed"):
                m.d.comb += self.vectors.valid.eq(1)
                with m.If(self.vectors.ready):
                    m.d.sync += [vector.eq(0), channel.eq(Mux(ends, 0, channel + 1))]
                    say(Answer.DONE)
                    with m.If(ends):
                        m.d.sync += [fresh.eq(0), lane.eq(0)]
                        m.next = "Await"
                with m.If(stopping):
                    m.next = "Listen"

            self._write(m, stopping, say)

            with m.State("Answer"):
                m.d.comb += [self.sent.valid.eq(1), self.sent.payload.eq(answer)]
                with m.If(self.sent.ready):
                    m.d.sync += argument.eq(0)
                    m.next = "Listen"

        with m.If(self.stop):
            m.d.sync += stopping.eq(1)
        return m

    def _write(self, m, stopping, say):
        """Take the words of a result, and send the numbers in them, but for the filling."""
        params, rows = self.params, self.params.limits.program[-1].rows
        layout = self.results.payload.shape()
        word, row = View(layout, Signal(layout.size)), Signal(range(rows + 1))
        lanes, lane = params.post_lanes, Signal(range(params.post_lanes + 1))
        number, place = Signal(NUMBER_BITS), Signal(range(3))
        with m.State("Await"):
            m.d.comb += self.results.ready.eq(1)
            m.d.sync += lane.eq(0)
            with m.If(self.results.valid):
                m.d.sync += word.eq(self.results.payload)
                m.next = "Take"
            with m.If(stopping):
                m.next = "Listen"

        with m.State("Take"):
            with m.If((lane == lanes) | (row == rows)):
                m.next = "Await"
                with m.If(word.last):
                    m.d.sync += row.eq(0)
                    say(Answer.DONE)
            with m.Else():
                with m.Switch(lane):
                    for index in range(lanes):
                        with m.Case(index):
                            m.d.sync += number.eq(word.y[index])
                m.d.sync += [lane.eq(lane + 1), row.eq(row + 1)]
                m.next = "Look"
            with m.If(stopping):
                m.d.sync += row.eq(0)
                m.next = "Listen"

        with m.State("Look"):
            m.d.sync += place.eq(places_of(number))
            m.next = "Write"

        with m.State("Write"):
            m.d.comb += self.sent.valid.eq(1)
            write_byte(m, self.sent.payload, number, place)
            with m.If(self.sent.ready):
                m.d.sync += place.eq(place - 1)
                with m.If(place == 0):
                    m.next = "Take"
