"""The largest of a vector of logits, found while they arrive."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, signed
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.units.sampler.params import SamplerParams

__all__ = ["LargestLogit"]


class LargestLogit(wiring.Component):
    """Where the largest logit is: a tree of comparisons, then one with the best so far.

    A pipeline that moves in every cycle, with a register before the first comparison and
    after each. The result of a vector is there ``params.greedy_steps`` cycles after its last
    word was taken, and stays until the first word of the next has come as far. The lowest
    index wins a tie.

    Members
    -------
    logits : ``In(ArrayLayout(signed(logit.bits), rows))``
        A word. Lanes past the vocabulary, in the last word, are ignored.
    position : ``In(range(params.depth))``
        Its place in the vector; at 0 a vector begins.
    taken : ``In(1)``
        It counts.
    value : ``Out(signed(logit.bits))``
        The largest logit.
    word, lane : ``Out(range(params.depth))``, ``Out(range(rows))``
        Where it is.
    """

    def __init__(self, params: SamplerParams) -> None:
        self.params = params
        value = signed(params.profile.logit.bits)
        super().__init__({
            "logits": In(ArrayLayout(value, params.rows)),
            "position": In(range(params.depth)),
            "taken": In(1),
            "value": Out(value),
            "word": Out(range(params.depth)),
            "lane": Out(max(params.levels, 1)),
        })

    def elaborate(self, platform):
        m = Module()
        params, logit = self.params, self.params.profile.logit
        steps = Pipeline(m, Const(1))

        nodes = []
        for lane, value in enumerate(self.logits):
            if lane >= params.used_lanes:
                # The least of values never beats a token, as all of them are to its left.
                is_last = self.position == params.words - 1
                value = Mux(is_last, Const(logit.min, signed(logit.bits)), value)
            nodes.append((steps.register(value, f"value0_{lane}"), Const(0)))
        for level in range(1, params.levels + 1):
            pairs, nodes = nodes, []
            for index in range(0, len(pairs), 2):
                (value, lane), is_right = pairs[index], Const(0)
                if index + 1 < len(pairs):
                    right_value, right_lane = pairs[index + 1]
                    is_right = (value - right_value)[-1]    # so that the left wins a tie
                    value = Mux(is_right, right_value, value)
                    lane = Mux(is_right, right_lane, lane)
                lane = Cat(lane, is_right) if level > 1 else is_right
                name = f"{level}_{index // 2}"
                nodes.append((steps.register(value, f"value{name}"),
                              steps.register(lane, f"lane{name}")))

        (value, lane), = nodes
        arrived = steps.flags(self.taken, params.levels + 1, "arrived")[-1]
        word = steps.delay(self.position, params.levels + 1, "arrived_word")
        is_first = steps.delay(~self.position.any(), params.levels + 1, "first")
        # The sign of a difference needs no logic behind the adder, as a comparison does.
        is_larger = (self.value - value)[-1]
        with m.If(arrived & (is_first | is_larger)):
            m.d.sync += [self.value.eq(value), self.word.eq(word), self.lane.eq(lane)]
        return m
