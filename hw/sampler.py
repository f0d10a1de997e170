"""Choosing the next token from logits, greedily or by temperature."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, signed, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.constant_product import constant_product
from sterna.hw.largest_logit import LargestLogit
from sterna.hw.logit_weight import LogitWeight
from sterna.hw.memory_attributes import BLOCK_RAM
from sterna.hw.pipeline import Pipeline
from sterna.hw.sampler_params import SamplerParams
from sterna.model.profile import NumericProfile

__all__ = ["ArgmaxSampler"]

_SEED_BITS = 32
_DIGIT_BITS = 16        # of the random number, which is multiplied digit by digit


class ArgmaxSampler(wiring.Component):
    """The next token: ``sterna.model.sampling.Sampler``, bit for bit.

    Takes the logits of a vector word by word, one per cycle, and then none until its token
    has been taken. The token is offered ``params.greedy_steps`` or ``params.sampled_steps``
    cycles after the last word was taken, whatever the logits are.

    Greedy, it is the index of the largest logit, the lowest on ties. With a temperature,
    each logit has a weight (:class:`~sterna.hw.logit_weight.LogitWeight`), and the token is
    the number of prefix sums of the weights that are at most ``r = (random * sum) >> 32``.
    The logits are kept in a memory. One pass over it sums the weights and notes the sum
    before each word; a binary search among these notes finds the word of the token. Its
    weights are then made once more, to go down the tree that sums them: to the right, less
    what is on the left, wherever r is not below that.

    Sums are as wide as the sum of all weights can be, 2^16 each, and cannot overflow.

    Parameters
    ----------
    profile
        Formats; ``profile.logit`` is that of the logits.
    rows
        Logits taken per word.
    vocab
        Logits of a vector.

    Members
    -------
    logits : ``In(stream.Signature(params.logits_layout))``
        ``logits`` of each lane. Lanes past the vocabulary, in the last word, are ignored.
    beta : ``In(unsigned(params.beta_bits))``
        Inverse temperature, ``Sampler.beta``; 0 is greedy. Read in the cycle in which the
        first word of a vector is taken.
    seed : ``In(unsigned(32))``
        Seed of the random numbers; 0 counts as 1, which is also what a reset leaves.
    reseed : ``In(1)``
        Start the random numbers from ``seed``. A number is drawn in the cycle in which the
        last word of a vector to be sampled is taken, and in no other; one drawn in the very
        cycle of ``reseed`` still comes from the numbers before.
    tokens : ``Out(stream.Signature(unsigned(params.token_bits)))``
        The token.

    Raises
    ------
    ValueError
        If a number is out of its range.
    """

    def __init__(self, profile: NumericProfile, *, rows: int, vocab: int) -> None:
        self.params = params = SamplerParams(profile, rows, vocab)
        super().__init__({
            "logits": In(stream.Signature(params.logits_layout)),
            "beta": In(unsigned(params.beta_bits)),
            "seed": In(unsigned(_SEED_BITS)),
            "reseed": In(1),
            "tokens": Out(stream.Signature(unsigned(params.token_bits))),
        })

    def elaborate(self, platform):
        m = Module()
        params = self.params
        # All is done at a fixed number of cycles after the last word: ``step`` counts them,
        # from 1 in the first to the one that offers the token.
        step = Signal(range(params.sampled_steps + 1))
        is_sampled = Signal()
        receiving = Signal(init=1)
        position = Signal(range(params.depth))
        beta = Signal(params.beta_bits, reset_less=True)
        taken, is_last, ends, done = Signal(), Signal(), Signal(), Signal()

        current_beta = Mux(position.any(), beta, self.beta)
        m.d.comb += [
            self.logits.ready.eq(receiving),
            taken.eq(self.logits.valid & receiving),
            is_last.eq(position == params.words - 1),
            ends.eq(taken & is_last),
            done.eq(self.tokens.valid & self.tokens.ready),
            self.tokens.valid.eq(
                step == Mux(is_sampled, params.sampled_steps, params.greedy_steps)),
        ]
        with m.If(taken):
            m.d.sync += [position.eq(Mux(is_last, 0, position + 1)), beta.eq(current_beta)]
        with m.If(ends):
            m.d.sync += [receiving.eq(0), step.eq(1), is_sampled.eq(current_beta.any())]
        with m.Elif(done):
            m.d.sync += [receiving.eq(1), step.eq(0)]
        with m.Elif(~receiving & ~self.tokens.valid):
            m.d.sync += step.eq(step + 1)

        m.submodules.largest = largest = LargestLogit(params)
        m.d.comb += [
            largest.logits.eq(self.logits.payload.logits),
            largest.position.eq(position),
            largest.taken.eq(taken),
        ]
        searching = Signal()
        word = Signal(range(params.depth))
        with m.If(step == params.search_step - 1):
            m.d.sync += searching.eq(1)
        with m.If(ends):
            m.d.sync += word.eq(0)

        # The memory is read so that the first word meets the largest logit, and later at
        # the word of the token. The count starts below zero where that takes a while.
        count = Signal(range(params.depth))
        read_word = Mux(searching, word, count)
        with m.If(done):
            m.d.sync += [count.eq(0), searching.eq(0)]
        with m.Elif(ends):
            m.d.sync += count.eq((1 - params.levels) % (1 << len(count)))
        with m.Elif(~receiving):
            m.d.sync += count.eq(count + 1)

        tree = self._weigh(m, taken, position, read_word, largest.value, beta)
        total, sums = self._sum(m, ends, step, tree[-1][0])
        share = self._draw(m, ends & current_beta.any(), step, total)
        lane = self._search(m, ends, step, searching, word, share, sums, tree)

        word = Mux(is_sampled, word, largest.word)
        lane = Mux(is_sampled, lane, largest.lane)
        if params.rows == 1:
            token = word
        elif params.rows == 1 << params.levels:
            token = Cat(lane, word)
        else:
            token = constant_product(word, params.rows) + lane
        m.d.comb += self.tokens.payload.eq(token[:params.token_bits])
        return m

    def _weigh(self, m, taken, position, read_word, best, beta):
        """Keep the logits; return the tree of sums of the weights of ``read_word``.

        That is a list of lists of registers: the weights, ``params.weight_latency`` cycles
        after the read, then sums of two, four and so on, a cycle more for each level.
        """
        params = self.params
        m.submodules.kept = kept = memory.Memory(
            shape=ArrayLayout(signed(params.profile.logit.bits), params.rows),
            depth=params.depth, init=[], attrs=BLOCK_RAM)
        read, write = kept.read_port(), kept.write_port()
        m.d.comb += [
            write.addr.eq(position),
            write.data.eq(self.logits.payload.logits),
            write.en.eq(taken),
            read.addr.eq(read_word),
            read.en.eq(1),
        ]

        steps = Pipeline(m, Const(1))
        in_last = steps.delay(
            read_word == params.words - 1, params.weight_latency - 1, "in_last")
        nodes = []
        for row in range(params.rows):
            m.submodules[f"weight{row}"] = weight = LogitWeight(params)
            m.d.comb += [
                weight.best.eq(best),
                weight.logit.eq(read.data[row]),
                weight.beta.eq(beta),
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

    def _sum(self, m, ends, step, word_sum):
        """Sum the weights of all words; note the sum before each. Return (total, port).

        The total is known at ``params.draw_step``. The port reads the notes.
        """
        params = self.params
        total = Signal(params.total_bits, reset_less=True)
        summing = Signal()
        position = Signal(range(params.depth))
        m.submodules.sums = sums = memory.Memory(
            shape=total.shape(), depth=params.depth, init=[], attrs=BLOCK_RAM)
        read, write = sums.read_port(), sums.write_port()
        m.d.comb += [
            write.addr.eq(position),
            write.data.eq(total),
            write.en.eq(summing),
            read.en.eq(1),
        ]
        with m.If(step == params.sum_step - 1):
            m.d.sync += summing.eq(1)
        with m.If(step == params.draw_step - 1):
            m.d.sync += summing.eq(0)
        with m.If(ends):
            m.d.sync += [total.eq(0), position.eq(0)]
        with m.Elif(summing):
            # Below vocab * 2^16 and a little, which fits.
            m.d.sync += [total.eq((total + word_sum)[:params.total_bits]),
                         position.eq(position + 1)]
        return total, read

    def _draw(self, m, draw, step, total):
        """Draw a number on ``draw``; return its share of the total, ``(number * total) >> 32``.

        It is known in the cycle before ``params.search_step``. The two floors of a product
        digit by digit, from the low digit, are the one floor of the whole.
        """
        params = self.params
        state = Signal(_SEED_BITS, init=1)
        drawn = Signal(_SEED_BITS, reset_less=True)
        # xorshift32. Shifts to the left keep 32 bits.
        mixed = state ^ Cat(Const(0, 13), state[:-13])
        mixed = mixed ^ mixed[17:]
        mixed = mixed ^ Cat(Const(0, 5), mixed[:-5])
        with m.If(draw):
            m.d.sync += [state.eq(mixed), drawn.eq(mixed)]
        with m.Elif(step == params.draw_step):
            m.d.sync += drawn.eq(drawn[_DIGIT_BITS:])
        with m.If(self.reseed):
            m.d.sync += state.eq(Mux(self.seed.any(), self.seed, 1))

        steps = Pipeline(m, Const(1))
        product = steps.register(drawn[:_DIGIT_BITS] * total, "product")
        carry = steps.register(product[_DIGIT_BITS:], "carry")
        # Below the total, as the number is below 2^32.
        return (carry + product)[_DIGIT_BITS:][:params.total_bits]

    def _search(self, m, ends, step, searching, word, share, sums, tree):
        """Find ``word`` by ``params.word_step``, then return its lane."""
        params = self.params
        limit = Signal(params.total_bits, reset_less=True)
        rest = Signal(params.total_bits, reset_less=True)   # limit less all that is left of it
        lane = Signal(max(params.levels, 1), reset_less=True)
        left = Signal(params.total_bits)
        probing, descending = Signal(), Signal()

        # A probe tries a bit of the word, from the highest down, every other cycle.
        probe = Signal(max(params.probes, 1))
        candidate = word | probe
        m.d.comb += [
            sums.addr.eq(candidate),
            left.eq(sums.data),
            probing.eq(searching & probe.any() & (step[0] == params.search_step % 2)),
        ]
        # A step down the tree tries a bit of the lane: the sum of the nodes left of it.
        with m.Switch(step):
            for index in range(params.levels):
                with m.Case(params.descent_step + index):
                    lefts = tree[params.levels - 1 - index][::2]
                    m.d.comb += [left.eq(Array(lefts)[lane]), descending.eq(1)]

        # Notes are sums from the first word on, nodes of the tree are not.
        difference = Mux(descending, rest, limit) - left
        is_right = ~difference[-1]
        with m.If(step == params.search_step - 1):
            m.d.sync += [limit.eq(share), rest.eq(share)]
        with m.If(((probing & (candidate < params.words)) | descending) & is_right):
            m.d.sync += rest.eq(difference[:-1])
        with m.If(ends):
            m.d.sync += [probe.eq((1 << params.probes) >> 1), lane.eq(0)]
        with m.Elif(probing):
            m.d.sync += probe.eq(probe >> 1)
            with m.If((candidate < params.words) & is_right):
                m.d.sync += word.eq(candidate)
        with m.Elif(descending):
            m.d.sync += lane.eq(Cat(is_right, lane[:-1]))
        return lane
