"""Input scaling of a network over frames: offsets, powers of two, and a channel of ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from amaranth.hdl import Array, Const, Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.layers.layer_params import LayerParams
from sterna.hw.parts.arithmetic import look_up, round_shift, saturate
from sterna.hw.parts.pipeline import Pipeline
from sterna.model.layers.layer import FRAME_BITS

__all__ = ["FrameScaler"]


class FrameScaler(wiring.Component):
    """The values of :class:`~sterna.model.quantized.records.Input`, one word per cycle.

    Members
    -------
    word : ``In``
        Index of the word in the frame.
    x : ``In(ArrayLayout(signed(FRAME_BITS), post_lanes))``
    y : ``Out(ArrayLayout(signed(profile.x.bits), post_lanes))``
        ``FRAME_STEPS`` cycles later; 0 after the channel of ones.
    """

    def __init__(self, params: LayerParams) -> None:
        self.params, constants = params, params.frame
        assert constants is not None
        fmt, lanes = params.profile.x, params.post_lanes
        # Inputs after the channels count as 0, and 0 minus this offset is one.
        self._offsets = [*constants.offset, -1 << fmt.frac]
        self._shifts = [*constants.shift, 0]
        super().__init__({
            "word": In(range(max(params.vector_beats, 2))),
            "x": In(ArrayLayout(signed(FRAME_BITS), lanes)),
            "y": Out(ArrayLayout(signed(fmt.bits), lanes))})

    def elaborate(self, platform):
        m = Module()
        steps, fmt = Pipeline(m, Const(1)), self.params.profile.x
        word, words = steps.register(self.word, "word"), range(1 << len(self.word))
        for lane in range(self.params.post_lanes):
            def at(values: Sequence[int], index: int, lane: int = lane) -> int:
                """Return the value for this lane's channel in a word."""
                place = index * self.params.post_lanes + lane
                return values[place] if place < len(values) else 0

            is_channel = [-1] * (len(self._offsets) - 1)
            mask, offset = (
                look_up(self.word, partial(at, values), FRAME_BITS + 1).as_signed()
                for values in (is_channel, self._offsets))
            centred = steps.register((self.x[lane] & mask) - offset, f"centred{lane}")
            shifts = sorted({at(self._shifts, index) for index in words})
            shifted = [round_shift(centred, each) if each > 0 else centred.shift_left(-each)
                       for each in shifts]
            chosen = Signal(signed(max(map(len, shifted))), name=f"chosen{lane}")
            m.d.comb += chosen.eq(Array(shifted)[look_up(
                word, lambda index, at=at, shifts=shifts: shifts.index(at(self._shifts, index)))])
            m.d.sync += self.y[lane].eq(saturate(chosen, fmt))
        return m
