"""Choosing the next token from logits, greedily or by temperature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, signed, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.arithmetic import constant_product, round_shift
from sterna.hw.parts.memory_attributes import LOGIC_ROM, NEVER_COLLIDES
from sterna.hw.parts.pipeline import Pipeline
from sterna.model.profile import NumericProfile
from sterna.model.quantized.sampling import EXP_TABLE

__all__ = ["BETA_BITS", "SEED_BITS", "ArgmaxSampler", "SamplerParams"]

SEED_BITS = 32
"""Bits of the seed of the random numbers."""

_BETA_FRAC = 10     # fraction bits of ``Sampler.beta``
BETA_BITS = 18
"""Bits of the inverse temperature, log2(e) / T with 10 fraction bits, for T down to 0.01."""


@dataclass(frozen=True, slots=True)
class SamplerParams:
    """Geometry and cycle counts of a sampler.

    >>> from sterna.model.profile import S16
    >>> params = SamplerParams(S16, rows=8, vocab=256)
    >>> params.words, params.greedy_steps, params.sampled_steps
    (32, 5, 89)
    """

    profile: NumericProfile  # formats; `profile.logit` is that of the logits
    rows: int  # logits taken per word
    vocab: int  # logits of a vector
    sampling: bool = True  # whether tokens can be drawn with a temperature; greedy only otherwise

    # Cycles from the read of a logit to its weight: memory, its output register, and a LogitWeight.
    weight_latency: ClassVar[int] = 8

    @property
    def words(self) -> int:
        """Words of a vector of logits."""
        return -(-self.vocab // self.rows)

    @property
    def depth(self) -> int:
        """Words of the memories: one without an address is no valid Verilog."""
        return max(self.words, 2)

    @property
    def levels(self) -> int:
        """Levels of the trees over the lanes of a word, a register after each."""
        return (self.rows - 1).bit_length()

    @property
    def used_lanes(self) -> int:
        """Lanes of the last word that hold a logit."""
        return self.vocab - (self.words - 1) * self.rows

    @property
    def token_bits(self) -> int:
        return (self.vocab - 1).bit_length()

    @property
    def exponent_shift(self) -> int:
        """Shift that leaves six fraction bits of ``(max - logit) * beta``."""
        return self.profile.logit.frac + _BETA_FRAC - self.index_bits

    @property
    def index_bits(self) -> int:
        """Fraction bits of an exponent: they select one of the entries of ``EXP_TABLE``."""
        return (len(EXP_TABLE) - 1).bit_length()

    @property
    def weight_bits(self) -> int:
        """Bits of an unnormalised probability, 0 to 2^16."""
        return int(EXP_TABLE[0]).bit_length()

    @property
    def total_bits(self) -> int:
        """Bits of a sum of all probabilities."""
        return (self.vocab * int(EXP_TABLE[0])).bit_length()

    @property
    def probes(self) -> int:
        """Probes of the binary search for the word of the token."""
        return (self.words - 1).bit_length()

    # Cycles, counted from the one in which the last word is taken ------------------

    @property
    def greedy_steps(self) -> int:
        """Cycles to the first of ``tokens.valid`` without temperature: a register, the tree and
        a comparison. From then on the largest logit is known.
        """
        return self.levels + 2

    @property
    def sum_step(self) -> int:
        """Cycle in which the sum of the first word's weights is known.

        Its logits come out of the memory's output register a cycle after the maximum is known.
        """
        return self.greedy_steps - 1 + self.weight_latency + self.levels

    @property
    def draw_step(self) -> int:
        """Cycle in which the sum of all weights is known."""
        return self.sum_step + self.words

    @property
    def search_step(self) -> int:
        """Cycle of the first probe: after operands, two products of parts, and their sums."""
        return self.draw_step + 5

    @property
    def word_step(self) -> int:
        """Cycle in which the word of the token is known; four for a probe but the first,
        whose address is a constant."""
        return self.search_step + max(4 * self.probes - 2, 0)

    @property
    def descent_step(self) -> int:
        """Cycle of the first step down the tree of that word's weights, read once more."""
        return self.word_step + self.weight_latency + self.levels - 1

    @property
    def sampled_steps(self) -> int:
        """Cycles to the first of ``tokens.valid`` with a temperature; three for a level."""
        return self.descent_step + 3 * self.levels if self.levels else self.word_step

    @property
    def logits_layout(self) -> StructLayout:
        return StructLayout({
            "logits": ArrayLayout(signed(self.profile.logit.bits), self.rows)})


class LargestLogit(wiring.Component):
    """Where the largest logit is: a tree of comparisons, then one with the best so far.

    A register stands before the first comparison and after each. The result of a vector is there
    ``params.greedy_steps`` cycles after its last word was taken, and stays until the first word
    of the next has come as far. The lowest index wins a tie.
    """

    def __init__(self, params: SamplerParams) -> None:
        self.params = params
        value = signed(params.profile.logit.bits)
        super().__init__({
            "logits": In(ArrayLayout(value, params.rows)),
            "position": In(range(params.depth)),    # at 0 a vector begins
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


_HALVING_BITS = 5       # no table entry is left after 31 halvings
_FINE_BITS = 3          # of these: halvings that are no multiple of eight


class LogitWeight(wiring.Component):
    """``2^(-u/64)`` of a logit, with ``u`` its distance from the largest times beta: an element
    of ``Sampler.weights``.

    A pipeline of :attr:`latency` steps: difference, product, rounding, table, halvings in
    eights, the other halvings. No bits are lost: a difference of two logits, the larger first,
    fits the bits of a logit, and a weight halved 17 times or more is zero.
    """

    latency = 6
    void_step = 4

    def __init__(self, params: SamplerParams) -> None:
        self.params = params
        logit = signed(params.profile.logit.bits)
        super().__init__({
            "best": In(logit),
            "logit": In(logit),
            "beta": In(unsigned(BETA_BITS)),    # a step after the logits
            "is_void": In(1),       # at void_step: there is no such token, its weight is zero
            "weight": Out(unsigned(params.weight_bits)),
        })

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps = Pipeline(m, Const(1))

        # Of a void logit, the difference may be negative: then it means nothing.
        difference = (self.best - self.logit)[:params.profile.logit.bits]
        difference = steps.register(difference, "difference")
        product = steps.register(difference * self.beta, "product")
        exponent = steps.register(round_shift(product, params.exponent_shift), "exponent")

        m.submodules.rom = rom = memory.Memory(
            shape=unsigned(params.weight_bits), depth=len(EXP_TABLE),
            init=[int(entry) for entry in EXP_TABLE], attrs=LOGIC_ROM)
        port = rom.read_port()
        m.d.comb += [port.addr.eq(exponent[:params.index_bits]), port.en.eq(1)]

        halvings = exponent[params.index_bits:]
        is_small = steps.register(halvings[_HALVING_BITS:].any(), "is_small")
        halvings = steps.register(halvings[:_HALVING_BITS], "halvings")
        coarse = Mux(is_small | self.is_void, 0, port.data >> (halvings[_FINE_BITS:] << _FINE_BITS))
        fine = steps.register(halvings[:_FINE_BITS], "fine")
        weight = steps.register(coarse, "coarse") >> fine
        m.d.comb += self.weight.eq(steps.register(weight, "halved"))
        return m


_DIGIT_BITS = 16        # of the random number and of the sum it is multiplied with


class LogitDraw(wiring.Component):
    """Where the token of a vector of logits is that is drawn with a temperature.

    The token is the number of prefix sums of the weights (:class:`LogitWeight`) that are at most
    ``r = (random * sum) >> 32``. The logits are kept in a memory. One pass over it sums the
    weights and notes the sum before each word; a binary search among these notes finds the word
    of the token. Its weights are then made once more, to go down the tree that sums them: to the
    right, less what is on the left, wherever r is not below that. All is done at a fixed number
    of cycles after the last word, the *steps* of
    :class:`SamplerParams`. Sums are as wide as the sum of all weights can be, 2^16 each.
    """

    def __init__(self, params: SamplerParams) -> None:
        self.params = params
        logit = signed(params.profile.logit.bits)
        super().__init__({
            "logits": In(ArrayLayout(logit, params.rows)),
            "position": In(range(params.depth)),
            "taken": In(1),
            "ends": In(1),      # it is the last word of its vector
            "draws": In(1),     # so it is, and takes a random number
            "step": In(range(params.sampled_steps + 1)),    # cycles since the last word
            "done": In(1),      # the token has been taken
            "best": In(logit),  # the largest, from params.greedy_steps on
            "beta": In(unsigned(BETA_BITS)),
            "seed": In(unsigned(SEED_BITS)),
            "reseed": In(1),
            # Where the token is, at params.sampled_steps.
            "word": Out(range(params.depth)),
            "lane": Out(max(params.levels, 1)),
        })

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps = Pipeline(m, Const(1))
        searching = Signal()
        with m.If(self.step == params.search_step - 1):
            m.d.sync += searching.eq(1)

        # What the sampler knows of the words, from registers.
        taken, ends, draws, reseed = (
            steps.flags(flag, 1, name)[-1] for flag, name in (
                (self.taken, "taken"), (self.ends, "ends"), (self.draws, "draws"),
                (self.reseed, "reseed")))
        # The memory is read so that the first word meets the largest logit, and later at
        # the word of the token. The count starts below zero where that takes a while.
        count = Signal(range(params.depth))
        counting = Signal()
        with m.If(self.done):
            m.d.sync += [count.eq(0), counting.eq(0), searching.eq(0)]
        with m.Elif(ends):
            m.d.sync += [count.eq((1 - params.levels) % (1 << len(count))), counting.eq(1)]
        with m.Elif(counting):
            m.d.sync += count.eq(count + 1)

        tree = self._weigh(m, steps, taken, Mux(searching, self.word, count))
        total, sums = self._sum(m, ends, tree[-1][0])
        share = self._draw(m, steps, draws, reseed, total)
        self._search(m, steps, ends, searching, share, sums, tree)
        return m

    def _weigh(self, m, steps, taken, read_word):
        """Keep the logits; return the tree of sums of the weights of ``read_word``.

        That is a list of lists of registers: the weights, ``params.weight_latency`` cycles
        after the read, then sums of two, four and so on, a cycle more for each level.
        """
        params = self.params
        m.submodules.kept = kept = memory.Memory(
            shape=self.logits.shape(), depth=params.depth, init=[], attrs=NEVER_COLLIDES)
        read = kept.read_port()
        write = kept.write_port()
        m.d.comb += [
            write.addr.eq(steps.register(self.position, "position")),
            write.data.eq(steps.register(self.logits, "logits")),
            write.en.eq(taken),
            read.addr.eq(read_word),
            read.en.eq(1),
        ]
        logits = self.logits.shape()(steps.register(read.data, "kept_logits"))

        before_weight = params.weight_latency - LogitWeight.latency
        in_last = steps.delay(
            read_word == params.words - 1, before_weight + LogitWeight.void_step, "in_last")
        nodes = []
        for row in range(params.rows):
            m.submodules[f"weight{row}"] = weight = LogitWeight(params)
            m.d.comb += [
                weight.best.eq(self.best),
                weight.logit.eq(logits[row]),
                weight.beta.eq(self.beta),
                weight.is_void.eq(in_last if row >= params.used_lanes else 0),
            ]
            nodes.append(weight.weight)
        tree = [nodes]
        for level in range(1, params.levels + 1):
            below = tree[-1]
            tree.append([
                steps.register(sum(below[index + 1:index + 2], start=below[index]),
                               f"sum{level}_{index // 2}")
                for index in range(0, len(below), 2)])
        return tree

    def _sum(self, m, ends, word_sum):
        """Sum the weights of all words; note the sum before each. Return (total, port).

        The total is known at ``params.draw_step``. The port reads the notes.
        """
        params = self.params
        total = Signal(params.total_bits, reset_less=True)
        summing = Signal()
        position = Signal(range(params.depth))
        m.submodules.sums = sums = memory.Memory(
            shape=total.shape(), depth=params.depth, init=[], attrs=NEVER_COLLIDES)
        read = sums.read_port()
        write = sums.write_port()
        m.d.comb += [
            write.addr.eq(position),
            write.data.eq(total),
            write.en.eq(summing),
            read.en.eq(1),
        ]
        with m.If(self.step == params.sum_step - 1):
            m.d.sync += summing.eq(1)
        with m.If(self.step == params.draw_step - 1):
            m.d.sync += summing.eq(0)
        with m.If(ends):
            m.d.sync += [total.eq(0), position.eq(0)]
        with m.Elif(summing):
            # Below vocab * 2^16 and a little, which fits.
            m.d.sync += [total.eq((total + word_sum)[:params.total_bits]),
                         position.eq(position + 1)]
        return total, read

    def _draw(self, m, steps, draws, reseed, total):
        """Draw a number; return its share of the total, ``(number * total) >> 32``.

        It is known in the cycle before ``params.search_step``. The number is multiplied digit
        by digit, from the low one: the two floors are the one floor of the whole product. A
        product of a digit is made of two: of the low digit of the total, and the rest of it.
        """
        params = self.params
        state = Signal(SEED_BITS, init=1)
        drawn = Signal(SEED_BITS, reset_less=True)
        # xorshift32. Shifts to the left keep 32 bits.
        mixed = state ^ Cat(Const(0, 13), state[:-13])
        mixed = mixed ^ mixed[17:]
        mixed = mixed ^ Cat(Const(0, 5), mixed[:-5])
        with m.If(draws):
            m.d.sync += [state.eq(mixed), drawn.eq(mixed)]
        with m.Elif(self.step == params.draw_step):
            m.d.sync += drawn.eq(drawn[_DIGIT_BITS:])
        seed = steps.register(self.seed, "seed")
        with m.If(reseed):
            m.d.sync += state.eq(Mux(seed.any(), seed, 1))

        digit = steps.register(drawn[:_DIGIT_BITS], "digit")
        low = steps.register(
            steps.register(total[:_DIGIT_BITS], "total_low") * digit, "product_low")
        high = steps.register(
            steps.register(total[_DIGIT_BITS:], "total_high") * digit, "product_high")
        product = steps.register(low + high.shift_left(_DIGIT_BITS), "product")
        carry = steps.register(product[_DIGIT_BITS:], "carry")
        # Below the total, as the number is below 2^32.
        return (carry + product)[_DIGIT_BITS:][:params.total_bits]

    def _search(self, m, steps, ends, searching, share, sums, tree):
        """Find ``word`` by ``params.word_step``, then ``lane``."""
        params = self.params
        limit = Signal(params.total_bits, reset_less=True)
        rest = Signal(params.total_bits, reset_less=True)   # limit less all that is left of it
        with m.If(self.step == params.search_step - 1):
            m.d.sync += limit.eq(share)
        with m.If(self.step == params.search_step):
            m.d.sync += rest.eq(limit)

        # A probe tries a bit of the word, from the highest down: its note is read, goes through
        # the register of the memory, is subtracted, and decides. The first, whose address is
        # there long before, needs the last two cycles only.
        probe = Signal(max(params.probes, 1))
        phase = Signal(2)
        candidate = self.word | probe
        m.d.comb += sums.addr.eq(candidate)
        beyond = steps.register(limit - steps.register(sums.data, "note"), "beyond")
        with m.If(searching):
            m.d.sync += phase.eq(phase + 1)
        with m.If(ends):
            m.d.sync += [self.word.eq(0), probe.eq((1 << params.probes) >> 1), phase.eq(2)]
        with m.Elif(searching & (phase == 3)):
            m.d.sync += probe.eq(probe >> 1)
            with m.If(probe.any() & (candidate < params.words) & ~beyond[-1]):
                m.d.sync += [self.word.eq(candidate), rest.eq(beyond[:-1])]

        # A step down the tree tries a bit of the lane: the sum of the nodes left of it is
        # chosen, subtracted, and decides. Notes are sums from the first word on, nodes are not.
        left = Signal(params.total_bits)
        reached = steps.flags(
            self.step == params.descent_step - 1, 3 * params.levels, "reached")[1:]
        for index, is_reached in enumerate(reached[::3]):
            lefts = tree[params.levels - 1 - index][::2]
            with m.If(is_reached):
                m.d.comb += left.eq(Array(lefts)[self.lane])
        remainder = steps.register(rest - steps.register(left, "left"), "remainder")
        is_right = ~remainder[-1]
        with m.If(ends):
            m.d.sync += self.lane.eq(0)
        with m.Elif(Cat(reached[2::3]).any()):
            m.d.sync += self.lane.eq(Cat(is_right, self.lane[:-1]))
            with m.If(is_right):
                m.d.sync += rest.eq(remainder[:-1])


class ArgmaxSampler(wiring.Component):
    """The next token: ``sterna.model.quantized.sampling.Sampler``, bit for bit.

    Takes the logits of a vector word by word, one per cycle, and then none until its token has
    been taken. The token is offered ``params.greedy_steps`` or ``params.sampled_steps`` cycles
    after the last word was taken, whatever the logits are.

    Greedy, it is the index of the largest logit, the lowest on ties. With a temperature it is
    drawn (:class:`LogitDraw`), which takes a multiplier and a table for each lane: without
    ``sampling`` there are none, and no ports for it.

    ``beta`` is read in the cycle in which the first word of a vector is taken; 0 is greedy.
    ``reseed`` starts the random numbers from ``seed``, where 0 counts as 1, which is also what a
    reset leaves. A number is drawn in the cycle in which the last word of a vector to be sampled
    is taken, and in no other; one drawn in the very cycle of ``reseed`` still comes from the
    numbers before.
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
