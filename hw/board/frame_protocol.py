"""The protocol of a network on a board's serial line: sends frames, returns results.

Orders and bytes are those of :mod:`sterna.hw.board.serial_protocol`. FEED takes one number of a
frame, 16-bit two's complement, channel by channel; the answer is DONE, after the last number of a
frame preceded by its results, each a token of 16-bit two's complement. RESTART: the next frame
begins a sequence. STOP discards an incomplete frame and the sequence.
"""

from __future__ import annotations

from amaranth.hdl import Mux, Signal
from amaranth.lib import stream
from amaranth.lib.data import View
from amaranth.lib.wiring import In, Out

from sterna.hw.board.serial_protocol import Answer, Order, OrderProtocol
from sterna.hw.layers.layer_params import LayerParams
from sterna.model.layers.layer import FRAME_BITS

__all__ = ["NUMBER_BITS", "FrameProtocol", "check_network"]

NUMBER_BITS = 16
"""Bits of a number of a frame and of a result on the line."""


def check_network(params: LayerParams) -> None:
    """Reject a network unless it has one sequence and results of up to 16 bits."""
    if params.sequences != 1:
        raise ValueError(f"a serial line has one sequence, the network {params.sequences}")
    if params.profile.logit.bits > NUMBER_BITS:
        raise ValueError(
            f"over a serial line results have at most {NUMBER_BITS} bits, got "
            f"{params.profile.logit.bits}")


class FrameProtocol(OrderProtocol):
    """Obeys orders with the unit of a network, which must be reset with ``stop``.

    Members
    -------
    vectors : ``Out(stream.Signature(params.vector_layout))``
        Frames to the unit.
    results : ``In(stream.Signature(params.result_layout("y", {})))``
        Results of the unit.
    """

    def __init__(self, params: LayerParams) -> None:
        check_network(params)
        self.params = params
        self._fresh, self._channel = Signal(init=1), Signal(range(params.channels))
        self._lane = Signal(range(max(params.post_lanes, 2)))
        self._vector = View(params.vector_layout, Signal(params.vector_layout.size))
        super().__init__(FRAME_BITS, {
            "vectors": Out(stream.Signature(params.vector_layout)),
            "results": In(stream.Signature(params.result_layout("y", params.sequence_field)))})

    def forget(self):
        return [self._fresh.eq(1), self._channel.eq(0), self._lane.eq(0), self._vector.eq(0)]

    def obey(self, m):
        params, lanes = self.params, self.params.post_lanes
        fresh, channel, lane, vector = self._fresh, self._channel, self._lane, self._vector
        ends = channel == params.channels - 1
        m.d.comb += self.vectors.payload.eq(vector)
        with m.State("Obey"):
            self.say(m, Answer.REFUSED)
            with m.Switch(self.order):
                with m.Case(Order.RESTART), m.If(channel == 0):
                    m.d.sync += fresh.eq(1)
                    self.say(m, Answer.DONE)
                with m.Case(Order.FEED):
                    with m.Switch(lane):
                        for index in range(lanes):
                            with m.Case(index):
                                m.d.sync += vector.x[index].eq(self.argument)
                    m.d.sync += lane.eq(Mux(lane == lanes - 1, 0, lane + 1))
                    if params.has_state:
                        m.d.sync += vector.start.eq(fresh)
                    with m.If(ends | (lane == lanes - 1)):
                        m.next = "Feed"
                    with m.Else():
                        m.d.sync += channel.eq(channel + 1)
                        self.say(m, Answer.DONE)

        with m.State("Feed"):
            m.d.comb += self.vectors.valid.eq(1)
            with m.If(self.vectors.ready):
                m.d.sync += [vector.eq(0), channel.eq(Mux(ends, 0, channel + 1))]
                self.say(m, Answer.DONE)
                with m.If(ends):
                    m.d.sync += [fresh.eq(0), lane.eq(0)]
                    m.next = "Await"
            with m.If(self.stopping):
                m.next = "Listen"

        self._give_results(m)

    def _give_results(self, m):
        """Take the words of a result and send their numbers, without the padding."""
        params, rows = self.params, self.params.limits.program[-1].rows
        layout = self.results.payload.shape()
        word, row = View(layout, Signal(layout.size)), Signal(range(rows + 1))
        lanes, lane = params.post_lanes, Signal(range(params.post_lanes + 1))
        number = Signal(NUMBER_BITS)
        with m.State("Await"):
            m.d.comb += self.results.ready.eq(1)
            m.d.sync += lane.eq(0)
            with m.If(self.results.valid):
                m.d.sync += word.eq(self.results.payload)
                m.next = "Take"
            with m.If(self.stopping):
                m.next = "Listen"

        with m.State("Take"):
            with m.If((lane == lanes) | (row == rows)):
                m.next = "Await"
                with m.If(word.last):
                    m.d.sync += row.eq(0)
                    self.say(m, Answer.DONE)
            with m.Else():
                with m.Switch(lane):
                    for index in range(lanes):
                        with m.Case(index):
                            m.d.sync += number.eq(word.y[index])
                m.d.sync += [lane.eq(lane + 1), row.eq(row + 1)]
                m.next = "Look"
            with m.If(self.stopping):
                m.d.sync += row.eq(0)
                m.next = "Listen"

        with self.send(m, number):
            m.next = "Take"
