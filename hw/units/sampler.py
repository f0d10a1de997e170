"""Choosing the next token from logits, greedily or by temperature."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.arithmetic import constant_product
from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.units.logit_draw import LogitDraw
from sterna.hw.units.sampler_params import BETA_BITS, SEED_BITS, SamplerParams

__all__ = ["ArgmaxSampler"]


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


class ArgmaxSampler(wiring.Component):
    """The next token: ``sterna.model.quantized.sampling.Sampler``, bit for bit.

    Takes the logits of a vector word by word, one per cycle, and then none until its token
    has been taken. The token is offered ``params.greedy_steps`` or ``params.sampled_steps``
    cycles after the last word was taken, whatever the logits are.

    Greedy, it is the index of the largest logit, the lowest on ties. With a temperature it
    is drawn (:class:`~sterna.hw.units.logit_draw.LogitDraw`), which takes a multiplier
    and a table for each lane: without ``sampling`` there are none, and no ports for it.

    Members
    -------
    logits : ``In(stream.Signature(params.logits_layout))``
        ``logits`` of each lane. Lanes past the vocabulary, in the last word, are ignored.
    beta : ``In(unsigned(BETA_BITS))``, with ``sampling``
        Inverse temperature, ``Sampler.beta``; 0 is greedy. Read in the cycle in which the
        first word of a vector is taken.
    seed : ``In(unsigned(32))``, with ``sampling``
        Seed of the random numbers; 0 counts as 1, which is also what a reset leaves.
    reseed : ``In(1)``, with ``sampling``
        Start the random numbers from ``seed``. A number is drawn in the cycle in which the
        last word of a vector to be sampled is taken, and in no other; one drawn in the very
        cycle of ``reseed`` still comes from the numbers before.
    tokens : ``Out(stream.Signature(unsigned(params.token_bits)))``
        The token.
    """

    def __init__(self, params: SamplerParams) -> None:
        self.params = params
        super().__init__({
            "logits": In(stream.Signature(params.logits_layout)),
            **({"beta": In(unsigned(BETA_BITS)),
                "seed": In(unsigned(SEED_BITS)),
                "reseed": In(1)} if params.sampling else {}),
            "tokens": Out(stream.Signature(unsigned(params.token_bits))),
        })

    def elaborate(self, platform):
        m = Module()
        params = self.params
        # All is done at a fixed number of cycles after the last word: ``step`` counts them,
        # from 1 in the first to the one that offers the token. It waits at 1.
        last_step = params.sampled_steps if params.sampling else params.greedy_steps
        step = Signal(range(last_step + 1), init=1)
        receiving = Signal(init=1)
        position = Signal(range(params.depth))
        # Of the word that is next, known a cycle ahead.
        is_last = Signal(init=params.words == 1)
        taken = Signal()
        ends = Signal()
        done = Signal()

        m.d.comb += [
            self.logits.ready.eq(receiving),
            taken.eq(self.logits.valid & receiving),
            ends.eq(taken & is_last),
            done.eq(self.tokens.valid & self.tokens.ready),
        ]
        with m.If(taken):
            m.d.sync += [
                position.eq(Mux(is_last, 0, position + 1)),
                is_last.eq(position == params.words - 2 if params.words > 1 else 1)]

        m.submodules.largest = largest = LargestLogit(params)
        m.d.comb += [
            largest.logits.eq(self.logits.payload.logits),
            largest.position.eq(position),
            largest.taken.eq(taken),
        ]
        word, lane, is_offered = largest.word, largest.lane, step == params.greedy_steps - 1
        if params.sampling:
            is_sampled, draw = self._draw(m, step, position, taken, ends, done, largest.value)
            word = Mux(is_sampled, draw.word, word)
            lane = Mux(is_sampled, draw.lane, lane)
            is_offered = Mux(is_sampled, step == params.sampled_steps - 1, is_offered)

        with m.If(ends):
            m.d.sync += receiving.eq(0)
        with m.If(done):
            m.d.sync += [receiving.eq(1), step.eq(1), self.tokens.valid.eq(0)]
        with m.If(~receiving & ~self.tokens.valid):
            m.d.sync += [step.eq(step + 1), self.tokens.valid.eq(is_offered)]

        if params.rows == 1:
            token = word
        elif params.rows == 1 << params.levels:
            token = Cat(lane, word)
        else:
            token = constant_product(word, params.rows) + lane
        m.d.comb += self.tokens.payload.eq(token[:params.token_bits])
        return m

    def _draw(self, m, step, position, taken, ends, done, best):
        """Draw tokens with a temperature; return (whether this one is, the unit that does)."""
        params = self.params
        beta = Signal(BETA_BITS, reset_less=True)
        is_first = Signal(init=1)
        is_warm = Signal()
        will_be_sampled = Signal()
        is_sampled = Signal()
        m.d.comb += is_warm.eq(Mux(is_first, self.beta.any(), will_be_sampled))
        with m.If(taken):
            m.d.sync += [is_first.eq(ends), will_be_sampled.eq(is_warm)]
            with m.If(is_first):
                m.d.sync += beta.eq(self.beta)
        with m.If(ends):
            m.d.sync += is_sampled.eq(is_warm)

        m.submodules.draw = draw = LogitDraw(params)
        m.d.comb += [
            draw.logits.eq(self.logits.payload.logits),
            draw.position.eq(position),
            draw.taken.eq(taken),
            draw.ends.eq(ends),
            draw.draws.eq(ends & is_warm),
            draw.step.eq(step),
            draw.done.eq(done),
            draw.best.eq(best),
            draw.beta.eq(beta),
            draw.seed.eq(self.seed),
            draw.reseed.eq(self.reseed),
        ]
        return is_sampled, draw
