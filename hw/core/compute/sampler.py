"""Choose the next token of every sequence from its logits: the most likely or a drawn one."""

from __future__ import annotations

from typing import NamedTuple

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import memory, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.compute.logit_weight import BETA_BITS, SEED_BITS, LogitWeight, WeightParams
from sterna.hw.core.compute.post import result_layout
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.parts.memory_attributes import BLOCK_RAM, NEVER_COLLIDES
from sterna.hw.parts.pipeline import Pipeline
from sterna.model.quantized.plan import StageKind

__all__ = ["TokenSampler", "choice_signature", "draw_cycles"]

_READ_STEPS = 2     # from the address of logits to the logits: memory, its register
_SHARE_STEPS = 6    # from a sum of weights to a random share of it


class _Weighed(NamedTuple):
    """The weights of a word of logits, and their sum."""

    weights: Value
    sum: Value
    valid: Signal
    index: Signal
    is_last: Signal


def _weigh_steps(params: CoreParams) -> int:
    """Cycles from the address of a word of logits to the sum of their weights."""
    return _READ_STEPS + LogitWeight.latency + (params.post_lanes - 1).bit_length()


def draw_cycles(params: CoreParams, outputs: int) -> int:
    """Cycles to draw one of so many tokens: their weights are summed, a share is computed, and
    weights are subtracted from it, those of the last word one by one."""
    words = -(-outputs // params.post_lanes)
    return 2 * (words + _weigh_steps(params)) + _SHARE_STEPS + 2 * params.post_lanes + 1
_DIGIT_BITS = 16    # of the random number


def choice_signature(params: CoreParams) -> wiring.Signature:
    """Interface between the sampler and the sequences.

    Members
    -------
    wanted : ``In(sequences)``
        Sequences that request a token: random numbers are drawn only for these.
    warm : ``In(sequences)``
        Sequences with a ``beta`` other than 0; the others take the largest logit.
    owner, beta : ``Out``, ``In``
        A sequence, and its ``beta`` in the same cycle.
    seed, seed_owner, reseed : ``In``
        Seeds the random numbers of a sequence, 0 counting as 1; not while ``choosing``.
    choosing : ``Out(1)``
        A random number may be drawn, or is stored, in this cycle.
    sampled, chosen, phase, sequence, token : ``Out``
        A token, in the order of the sequences; ``chosen`` if it was requested.
    """
    index = max((params.sequences - 1).bit_length(), 1)
    return wiring.Signature({
        "wanted": In(params.sequences),
        "warm": In(params.sequences),
        "owner": Out(index),
        "beta": In(BETA_BITS),
        "seed": In(SEED_BITS),
        "seed_owner": In(index),
        "reseed": In(1),
        "choosing": Out(1),
        "sampled": Out(1),
        "chosen": Out(1),
        "phase": Out(1),
        "sequence": Out(params.batch_bits),
        "token": Out(params.token_bits),
    })


class TokenSampler(wiring.Component):
    """``sterna.model.quantized.sampling.Sampler`` for every sequence of a phase, one by one.

    The largest logit is tracked as the logits arrive. To draw, the logits are read twice: their
    weights (:class:`~sterna.hw.core.compute.logit_weight.LogitWeight`) are summed, then subtracted
    from ``r = (random * sum) >> 32`` until it is below the next one, which is that of the token.
    The number of cycles does not depend on the logits. A compact core never draws.

    Members
    -------
    results, results_valid : ``In``
        Results of the post-processor; the logits are stored.
    stages : ``In(params.stage_layout).array(phases)``
    choices : ``Out(choice_signature(params))``
    """

    def __init__(self, params: CoreParams) -> None:
        self.params = params
        super().__init__({
            "results": In(result_layout(params)),
            "results_valid": In(1),
            "stages": In(params.stage_layout).array(params.phases),
            "choices": Out(choice_signature(params)),
        })

    def elaborate(self, platform):
        m = Module()
        params, choices = self.params, self.choices
        self._units = WeightParams(params.profile, params.vocab)
        steps = Pipeline(m, Const(1))
        best, complete = self._find_largest(m, steps)

        phase, sequence = Signal(), Signal(params.batch_bits)
        last = Signal()
        found, token, wanted = Signal(), Signal(params.token_bits), Signal()
        m.d.comb += [
            choices.owner.eq(params.sequence_of(phase, sequence)),
            last.eq(sequence == params.batch - 1),
            wanted.eq(choices.wanted.bit_select(choices.owner, 1)),
        ]
        m.d.sync += [
            choices.sampled.eq(found), choices.chosen.eq(found & wanted),
            choices.phase.eq(phase), choices.sequence.eq(sequence), choices.token.eq(token)]
        with m.If(found):
            m.d.sync += sequence.eq(Mux(last, 0, sequence + 1))
        if params.compact:
            m.d.comb += token.eq(best.token)
            with m.If(~found):
                for index, flag in enumerate(complete):
                    with m.If(flag):
                        m.d.sync += [phase.eq(index), flag.eq(0), found.eq(1)]
            with m.Elif(last):
                m.d.sync += found.eq(0)
        else:
            draws = wanted & choices.warm.bit_select(choices.owner, 1)
            self._choose_or_draw(m, steps, best, complete, phase, last, draws, found, token)
        return m

    def _choose_or_draw(self, m, steps, best, complete, phase, last, draws, found, token):
        """Choose the tokens of a complete phase: the most likely or drawn ones."""
        params = self.params
        lane = Signal(range(max(params.post_lanes, 2)))
        # Draws: the weights of the logits, read word by word.
        beta, largest = Signal(BETA_BITS), Signal.like(best.value)
        reading = Signal()
        word = self._weigh(m, steps, reading, phase, largest, beta)
        draws_now = Signal()
        random, keeps = self._random(m, draws_now)
        total = Signal(self._units.total_bits)
        share = self._share(m, steps, random, total)
        # The remainder of r, and the one before it, for when it turns negative.
        rest, before = Signal(signed(self._units.total_bits + 1)), Signal(self._units.total_bits)
        kept = Signal(ArrayLayout(unsigned(self._units.weight_bits), params.post_lanes))
        token_word = Signal(params.token_bits)
        wait = Signal(range(_SHARE_STEPS))
        weight = Signal(self._units.weight_bits)
        tried, takes, upcoming = Signal(), Signal(), Signal.like(lane)
        with m.If(takes & ~rest[-1]):
            m.d.sync += [before.eq(rest), rest.eq(rest - Mux(tried, weight, word.sum)),
                         lane.eq(upcoming)]
        with m.FSM():
            with m.State("IDLE"):
                for index, flag in enumerate(complete):
                    with m.If(flag):
                        m.d.sync += [phase.eq(index), flag.eq(0)]
                        m.next = "CHOOSE"
            with m.State("CHOOSE"):
                m.d.comb += [token.eq(best.token), self.choices.choosing.eq(1)]
                m.d.sync += [largest.eq(best.value), beta.eq(self.choices.beta), total.eq(0)]
                with m.If(draws):
                    m.d.comb += draws_now.eq(1)
                    m.d.sync += reading.eq(1)
                    m.next = "SUM"
                with m.Else():
                    m.d.comb += found.eq(1)
                    with m.If(last):
                        m.next = "IDLE"
            with m.State("SUM"):
                m.d.comb += self.choices.choosing.eq(keeps)
                with m.If(word.valid):
                    m.d.sync += total.eq(total + word.sum)
                with m.If(word.is_last):
                    m.d.sync += wait.eq(0)
                    m.next = "SHARE"
            with m.State("SHARE"):
                m.d.sync += wait.eq(wait + 1)
                with m.If(wait == _SHARE_STEPS - 1):
                    m.d.sync += [rest.eq(share), reading.eq(1)]
                    m.next = "SEARCH"
            with m.State("SEARCH"):
                m.d.comb += takes.eq(word.valid)
                with m.If(word.valid & ~rest[-1]):
                    m.d.sync += [kept.eq(word.weights), token_word.eq(word.index)]
                with m.If(word.is_last):
                    m.d.sync += [upcoming.eq(0), rest.eq(Mux(rest[-1], before, rest))]
                    m.next = "LANE"
            with m.State("LANE"):
                # Two cycles per lane: its weight, then the difference.
                m.d.comb += takes.eq(tried)
                m.d.sync += [tried.eq(~tried), upcoming.eq(upcoming + tried), weight.eq(
                    Array(kept[index] for index in range(params.post_lanes))[upcoming])]
                count = Signal(range(2 * params.post_lanes + 1))
                m.d.sync += count.eq(count + 1)
                with m.If(count == 2 * params.post_lanes):
                    m.d.sync += [count.eq(0), tried.eq(0)]
                    bits = (params.post_lanes - 1).bit_length()
                    m.d.comb += [found.eq(1), token.eq(Cat(lane[:bits], token_word))]
                    m.next = "CHOOSE"
                    with m.If(last):
                        m.next = "IDLE"

    def _find_largest(self, m, steps):
        """Keep the largest logit of every sequence; return (that of the owner, for each phase
        whether all of its logits have arrived)."""
        params, results = self.params, self.results
        nodes = [(steps.register(value, f"value{lane}"), Const(0, 0))
                 for lane, value in enumerate(results.logits)]
        latency = 1
        while len(nodes) > 1:
            latency += 1
            pairs, nodes = nodes, []
            for index in range(0, len(pairs), 2):
                (left, left_lane), (right, right_lane) = pairs[index:index + 2]
                is_right = (left - right)[-1]       # so that the left wins a tie
                lane = is_right if latency == 2 else Cat(
                    Mux(is_right, right_lane, left_lane), is_right)
                nodes.append((
                    steps.register(Mux(is_right, right, left), f"value{latency}_{index}"),
                    steps.register(lane, f"lane{latency}_{index}")))
        (value, lane), = nodes
        is_head = self.results_valid & (results.tag.kind == StageKind.HEAD)
        valid = steps.flags(is_head, latency, "valid")[-1]
        tag = params.tag_layout(steps.delay(results.tag, latency, "tag"))
        layout = StructLayout({"value": value.shape(), "token": params.token_bits})
        m.submodules.best = store = memory.Memory(
            shape=layout, depth=max(params.sequences, 2), init=[], attrs=NEVER_COLLIDES)
        write, before = store.write_port(), store.read_port(domain="comb")
        read = store.read_port(domain="comb")
        owner = params.sequence_of(tag.phase, tag.sequence)
        m.d.comb += [
            before.addr.eq(owner), write.addr.eq(owner), read.addr.eq(self.choices.owner),
            write.en.eq(valid & (tag.first | (before.data.value - value)[-1])),
            write.data.value.eq(value),
            write.data.token.eq(Cat(lane, tag.beat)),
        ]
        complete = [Signal(name=f"complete{phase}") for phase in range(params.phases)]
        ends = valid & tag.last & (tag.sequence == params.batch - 1)
        for phase, flag in enumerate(complete):
            with m.If(ends & (tag.phase == phase)):
                m.d.sync += flag.eq(1)

        if not params.compact:
            self._keep_logits(m, is_head)
        return read.data, complete

    def _keep_logits(self, m, is_head):
        """Store the logits of every sequence for draws."""
        params, results = self.params, self.results
        word_bits = (params.logit_words - 1).bit_length()
        shape = ArrayLayout(signed(params.profile.logit.bits), params.post_lanes)
        m.submodules.logits = self._logits = store = memory.Memory(
            shape=shape, depth=max(params.sequences << word_bits, 2), init=[],
            attrs=BLOCK_RAM | NEVER_COLLIDES)
        write = store.write_port()
        m.d.comb += [
            write.addr.eq(Cat(results.tag.beat[:word_bits], params.sequence_of(
                results.tag.phase, results.tag.sequence))),
            write.data.eq(results.logits),
            # Words beyond the vocabulary are never read.
            write.en.eq(is_head & (results.tag.beat < params.logit_words)),
        ]

    def _weigh(self, m, steps, reading, phase, largest, beta):
        """Read the logits of the owner, word by word; return the :class:`_Weighed`."""
        params, units = self.params, self._units
        lanes = params.post_lanes
        bits = (lanes - 1).bit_length()
        outputs = Array(self.stages)[phase].outputs
        word = Signal(range(max(params.logit_words, 2)))
        last_word = Signal()
        m.d.comb += last_word.eq(word == (outputs - 1)[bits:])
        with m.If(reading):
            m.d.sync += word.eq(word + 1)
            with m.If(last_word):
                m.d.sync += [word.eq(0), reading.eq(0)]
        word_bits = (params.logit_words - 1).bit_length()
        read = self._logits.read_port()
        m.d.comb += [read.addr.eq(Cat(word[:word_bits], self.choices.owner[:(
            params.sequences - 1).bit_length()])), read.en.eq(1)]
        logits = self._logits.shape(steps.register(read.data, "kept_logits"))
        nodes = []
        for lane in range(lanes):
            m.submodules[f"weight{lane}"] = weight = LogitWeight(units)
            is_void = steps.register(Cat(Const(lane, bits), word) >= outputs, f"is_void{lane}")
            m.d.comb += [
                weight.best.eq(largest), weight.logit.eq(logits[lane]), weight.beta.eq(beta),
                weight.is_void.eq(steps.delay(
                    is_void, _READ_STEPS - 1 + LogitWeight.void_step, f"void{lane}")),
            ]
            nodes.append(weight.weight)
        weights = Cat(nodes)
        level = nodes
        depth = 0
        while len(level) > 1:
            depth += 1
            level = [steps.register(level[i] + level[i + 1], f"sum{depth}_{i}")
                     for i in range(0, len(level), 2)]
        latency = _weigh_steps(params)
        return _Weighed(steps.delay(weights, depth, "weights"), level[0],
                        steps.flags(reading, latency, "arrived")[-1],
                        steps.delay(word, latency, "arrived_word"),
                        steps.flags(reading & last_word, latency, "over")[-1])

    def _random(self, m, draws):
        """Add the random numbers of every sequence; return (the last one drawn, whether it is
        being stored)."""
        params = self.params
        m.submodules.states = store = memory.Memory(
            shape=unsigned(SEED_BITS), depth=max(params.sequences, 2), init=[],
            attrs=NEVER_COLLIDES)
        write, read = store.write_port(), store.read_port(domain="comb")
        # xorshift32. Left shifts keep 32 bits.
        mixed = read.data ^ Cat(Const(0, 13), read.data[:-13])
        mixed = mixed ^ mixed[17:]
        mixed = mixed ^ Cat(Const(0, 5), mixed[:-5])
        drawn, keeps = Signal(SEED_BITS, reset_less=True), Signal()
        m.d.comb += [
            read.addr.eq(self.choices.owner),
            write.addr.eq(Mux(keeps, self.choices.owner, self.choices.seed_owner)),
            write.data.eq(Mux(keeps, drawn, Mux(self.choices.seed.any(), self.choices.seed, 1))),
            write.en.eq(keeps | self.choices.reseed),
        ]
        m.d.sync += keeps.eq(draws)
        # Whether a number is drawn is known late in the cycle, so it is always registered.
        with m.If(self.choices.choosing):
            m.d.sync += drawn.eq(mixed)
        return drawn, keeps

    def _share(self, m, steps, random, total):
        """Return ``(random * total) >> 32``, six cycles after both are valid; the nested floors
        equal the floor of the whole product."""
        low = steps.register(random[:_DIGIT_BITS], "low")
        high = steps.register(random[_DIGIT_BITS:], "high")
        factor = steps.register(total, "factor")
        lows, highs = ([
            steps.register(digit * part, f"{name}_product{index}") for index, part in enumerate(
                (factor[:_DIGIT_BITS], factor[_DIGIT_BITS:]))]
            for name, digit in (("low", low), ("high", high)))
        # Each is shifted one digit more than the one before, so the floors are those of the sums.
        product = steps.register(lows[0][_DIGIT_BITS:] + lows[1], "product")
        product = steps.register(product + steps.delay(highs[0], 1, "middle"), "sum")
        return steps.register(
            product[_DIGIT_BITS:] + steps.delay(highs[1], 2, "upper"), "share")
