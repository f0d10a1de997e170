"""The sampler in gateware against the one of the model, in Amaranth's simulator."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from amaranth.hdl import ResetInserter, Signal

from sterna.hw.testbench.amaranth import Pauses, run_bench
from sterna.hw.units.sampler import ArgmaxSampler
from sterna.hw.units.sampler_params import BETA_BITS, SamplerParams
from sterna.model.profile import C12, S16, FixedPoint
from sterna.model.quantized.sampling import Sampler

STEADY = Pauses()
PAUSES = [STEADY, Pauses(0.5, 0.0, 1), Pauses(0.0, 0.8, 2), Pauses(0.4, 0.6, 3)]
SHAPES = [(8, 256), (8, 65), (8, 5), (4, 4), (3, 65), (1, 2), (1, 9), (2, 3), (5, 11), (16, 33)]
TEMPERATURES = [0.01, 0.3, 0.7, 1.0, 2.0, 100.0]


@dataclass
class Draw:
    """A vector of logits to offer, and what goes with it."""

    logits: np.ndarray
    temperature: float = 0.0
    seed: int | None = None         # seed anew before its first word


@dataclass
class Run:
    """Tokens, and cycles in which words and tokens moved."""

    tokens: list[int] = field(default_factory=list)
    sent_at: list[int] = field(default_factory=list)
    taken_at: list[int] = field(default_factory=list)


def run_phases(dut: ArgmaxSampler, phases, pauses=STEADY) -> list[Run]:
    """Run each phase, ``(draws, cycles or None)``, after a reset; None is to the last token.

    Lanes past the vocabulary, and beta and seed when nobody reads them, hold random bits.
    """
    params = dut.params
    reset = Signal()
    dice = random.Random(pauses.seed)
    noise = np.random.default_rng(pauses.seed)
    fmt = params.profile.logit
    runs = []

    async def bench(ctx):
        for draws, limit in phases:
            ctx.set(dut.logits.valid, 0)
            ctx.set(dut.tokens.ready, 0)
            ctx.set(reset, 1)
            await ctx.tick()
            ctx.set(reset, 0)
            words = []
            for draw in draws:
                padded = noise.integers(fmt.min, fmt.max + 1, params.words * params.rows)
                padded[:params.vocab] = draw.logits
                words += padded.reshape(params.words, params.rows).tolist()
            run, cycle, held, offered = Run(), 0, None, False
            runs.append(run)
            seeded = set()
            while len(run.tokens) < len(draws) and (limit is None or cycle < limit):
                assert cycle < 40 * len(words) + 40 * params.sampled_steps * len(draws), pauses
                index, word = divmod(len(run.sent_at), params.words)
                pending = index < len(draws)
                reseed = False
                if pending and word == 0 and draws[index].seed is not None:
                    reseed = index not in seeded and len(run.tokens) == index
                    if index not in seeded and not reseed:
                        pending = False             # the token before is still to be drawn
                if reseed:
                    seeded.add(index)
                    pending = params.words > 1      # not in the cycle that draws
                if params.sampling:
                    ctx.set(dut.seed, draws[index].seed if reseed else dice.getrandbits(32))
                    ctx.set(dut.reseed, reseed)
                offered = offered or (pending and dice.random() >= pauses.driver)
                if offered:
                    ctx.set(dut.logits.payload.logits, words[len(run.sent_at)])
                beta = dice.choice([0, dice.getrandbits(BETA_BITS)])
                if offered and word == 0:
                    beta = Sampler(temperature=draws[index].temperature).beta
                if params.sampling:
                    ctx.set(dut.beta, beta)
                taking = dice.random() >= pauses.sink
                ctx.set(dut.logits.valid, offered)
                ctx.set(dut.tokens.ready, taking)
                _, _, accepted, valid, token = await ctx.tick().sample(
                    dut.logits.ready, dut.tokens.valid, dut.tokens.payload)
                if offered and accepted:
                    run.sent_at.append(cycle)
                    offered = False
                assert held is None or (valid and token == held), "a token changed"
                held = token if valid and not taking else None
                if valid and taking:
                    run.tokens.append(token)
                    run.taken_at.append(cycle)
                cycle += 1

    run_bench(ResetInserter(reset)(dut), bench)
    return runs


def expected(draws: list[Draw], logit_frac: int = 8) -> list[int]:
    """Tokens of the model's sampler; its random numbers go on from draw to draw."""
    tokens, state = [], 1
    for draw in draws:
        sampler = Sampler(temperature=draw.temperature, logit_frac=logit_frac,
                          seed=state if draw.seed is None else (draw.seed or 1))
        tokens.append(sampler(draw.logits))
        state = sampler.state
    return tokens


def check(dut: ArgmaxSampler, draws: list[Draw], pauses=STEADY) -> Run:
    run, = run_phases(dut, [(draws, None)], pauses)
    assert run.tokens == expected(draws, dut.params.profile.logit.frac)
    return run


def random_logits(rng: np.random.Generator, vocab: int, fmt: FixedPoint) -> np.ndarray:
    """Logits of many kinds: anything, close together, few values, a plateau at the top."""
    kind = rng.integers(5)
    if kind == 0:
        return rng.integers(fmt.min, fmt.max + 1, vocab)
    if kind == 1:
        return rng.integers(fmt.min // 40, fmt.max // 40 + 1, vocab)
    if kind == 2:
        return rng.choice([fmt.min, fmt.max, 0, -1], vocab)
    if kind == 3:
        return rng.integers(0, 3, vocab) + fmt.max - 2
    return np.full(vocab, rng.integers(fmt.min, fmt.max + 1))


@pytest.mark.parametrize(("rows", "vocab"), SHAPES)
def test_greedy_extremes_and_ties_take_the_lowest_index(rows, vocab):
    fmt = S16.logit
    vectors = [np.full(vocab, value) for value in (fmt.min, fmt.max, 0)]
    for index in {0, 1, rows - 1, rows, vocab // 2, vocab - 2, vocab - 1} & set(range(vocab)):
        for low, high in ((fmt.min, fmt.max), (fmt.min, fmt.min + 1), (-1, 0)):
            single = np.full(vocab, low)
            single[index] = high
            tied = single.copy()
            tied[index:] = high
            vectors += [single, tied]
    dut = ArgmaxSampler(SamplerParams(S16, rows=rows, vocab=vocab))
    check(dut, [Draw(vector) for vector in vectors])


@pytest.mark.parametrize(("rows", "vocab", "pauses"), [
    (*shape, PAUSES[(index + more) % len(PAUSES)])
    for index, shape in enumerate(SHAPES) for more in range(2)], ids=str)
def test_greedy_and_sampled_tokens_equal_the_model_while_both_ends_pause(rows, vocab, pauses):
    rng = np.random.default_rng(pauses.seed)
    draws = [Draw(random_logits(rng, vocab, S16.logit),
                  float(rng.choice([0, *TEMPERATURES])),
                  int(rng.integers(1, 1 << 32)) if rng.random() < 0.2 else None)
             for _ in range(16)]
    check(ArgmaxSampler(SamplerParams(S16, rows=rows, vocab=vocab)), draws, pauses)


@pytest.mark.parametrize("pauses", [PAUSES[0], PAUSES[3]], ids=str)
@pytest.mark.parametrize(("rows", "vocab"), [(8, 65), (1, 9), (5, 11)])
def test_a_sampler_without_temperature_takes_the_largest_and_has_no_ports_for_more(
        rows, vocab, pauses):
    rng = np.random.default_rng(pauses.seed)
    dut = ArgmaxSampler(SamplerParams(S16, rows=rows, vocab=vocab, sampling=False))
    draws = [Draw(random_logits(rng, vocab, S16.logit)) for _ in range(16)]
    run = check(dut, draws, pauses)
    assert set(dut.signature.members) == {"logits", "tokens"}
    if pauses == STEADY:
        ends = run.sent_at[dut.params.words - 1::dut.params.words]
        assert run.taken_at == [end + dut.params.greedy_steps for end in ends]


@pytest.mark.parametrize(("fmt", "rows", "vocab", "temperatures"), [
    (S16.logit, 8, 65, [0.01]), (S16.logit, 8, 65, [1.0]), (S16.logit, 8, 65, [100.0]),
    *((S16.logit, rows, 1000, [1.0, 0.0, 100.0, 0.5, 2.0, 1.0]) for rows in (7, 16)),
    *((FixedPoint(bits, frac), 3, 17, [0, *TEMPERATURES])
      for bits, frac in ((12, 0), (20, 12), (24, 24)))], ids=str)
def test_many_draws_equal_the_model(fmt, rows, vocab, temperatures):
    rng = np.random.default_rng(11)
    dut = ArgmaxSampler(SamplerParams(replace(C12, logit=fmt), rows, vocab))
    assert dut.params.exponent_shift == fmt.frac + 4
    run = check(dut, [
        Draw(random_logits(rng, vocab, fmt) if rows == 3 else rng.integers(-900, 900, vocab),
             temperatures[index % len(temperatures)],
             int(rng.integers(1, 1 << 32)) if index % 50 == 0 else None)
        for index in range(60 if vocab < 100 else 6)])
    if temperatures in ([1.0], [100.0]):
        assert len(set(run.tokens)) > 20


@pytest.mark.parametrize(("rows", "vocab"), SHAPES)
def test_extreme_random_numbers_and_weights(rows, vocab):
    # The least and greatest numbers, and those with all bits of a digit equal, together
    # with weights that are all the largest, only one above zero, or zero in whole words.
    fmt = S16.logit
    vectors = [np.full(vocab, fmt.min), np.full(vocab, fmt.max)]
    for index in {0, vocab // 2, vocab - 1}:
        single = np.full(vocab, fmt.min)
        single[index] = fmt.max
        vectors.append(single)
    ends = np.full(vocab, fmt.min)
    ends[[0, -1]] = 0
    vectors.append(ends)
    draws = [Draw(vector, 1.0, before(number)) for vector in vectors
             for number in (1, (1 << 32) - 1, 1 << 31, 0xFFFF, 0xFFFF_0000)]
    for draw in draws:
        sampler = Sampler(temperature=1.0, seed=draw.seed)
        sampler(draw.logits)
        assert sampler.state in (1, (1 << 32) - 1, 1 << 31, 0xFFFF, 0xFFFF_0000)
    check(ArgmaxSampler(SamplerParams(S16, rows=rows, vocab=vocab)), draws)


def before(number: int) -> int:
    """The state of the generator from which it draws ``number``."""
    mask = (1 << 32) - 1
    for shift in (-5, 17, -13):
        value = number
        for _ in range(32):
            value = number ^ ((value << -shift) & mask if shift < 0 else value >> shift)
        number = value
    return number


@pytest.mark.parametrize(("rows", "vocab", "greedy", "sampled"), [
    (8, 256, 5, 89), (8, 65, 5, 62), (8, 5, 5, 40), (1, 2, 2, 18), (1, 9, 2, 37), (3, 65, 4, 73),
])
def test_tokens_come_after_the_stated_cycles(rows, vocab, greedy, sampled):
    dut = ArgmaxSampler(SamplerParams(S16, rows=rows, vocab=vocab))
    params = dut.params
    assert (params.greedy_steps, params.sampled_steps) == (greedy, sampled)
    rng = np.random.default_rng(13)
    draws = [Draw(random_logits(rng, vocab, S16.logit), temperature)
             for temperature in (0.0, 1.0, 0.0, 0.01, 100.0, 0.0, 0.0)]
    run = check(dut, draws)
    cycle, sent, taken = 0, [], []
    for draw in draws:
        sent += range(cycle, cycle + params.words)
        taken.append(sent[-1] + (sampled if draw.temperature else greedy))
        cycle = taken[-1] + 1       # no logits are taken before the token is
    assert (run.sent_at, run.taken_at) == (sent, taken)


def test_reset_at_any_time_begins_anew():
    dut = ArgmaxSampler(SamplerParams(S16, rows=4, vocab=22))
    rng = np.random.default_rng(14)
    draws = [Draw(rng.integers(-900, 900, 22), temperature) for temperature in (1.0, 0.0, 2.0)]
    whole = dut.params.words + dut.params.sampled_steps
    phases = []
    for cycles in range(1, whole + 5):
        phases += [(draws[::-1], cycles), (draws, None)]
    runs = run_phases(dut, phases)
    wanted = expected(draws)
    assert all(run.tokens == wanted for run in runs[1::2])
    assert len({len(run.sent_at) + 100 * len(run.tokens) for run in runs[::2]}) > 6


def test_seeds_begin_the_same_numbers_and_zero_counts_as_one():
    dut = ArgmaxSampler(SamplerParams(S16, rows=2, vocab=8))
    flat = np.zeros(8, dtype=int)
    tokens = check(dut, [Draw(flat, 1.0, seed if t == 0 else None)
                         for seed in (1, 0, 77, 77) for t in range(12)]).tokens
    assert tokens[:12] == tokens[12:24] != tokens[24:36]
    assert tokens[24:36] == tokens[36:]
    unseeded = check(dut, [Draw(flat, 1.0) for _ in range(12)]).tokens
    assert unseeded == tokens[:12]      # after a reset the seed is 1


def test_a_seed_in_the_cycle_of_a_draw_is_for_the_next():
    dut = ArgmaxSampler(SamplerParams(S16, rows=64, vocab=64))
    flat, tokens = np.zeros(64, dtype=int), []
    model, again = Sampler(temperature=1.0), Sampler(temperature=1.0, seed=99)

    async def bench(ctx):
        ctx.set(dut.beta, model.beta)
        ctx.set(dut.seed, 99)
        ctx.set(dut.tokens.ready, 1)
        for reseed in (0, 1, 0):
            ctx.set(dut.reseed, reseed)
            ctx.set(dut.logits.valid, 1)
            await ctx.tick()
            ctx.set(dut.reseed, 0)
            ctx.set(dut.logits.valid, 0)
            for _ in range(dut.params.sampled_steps):
                _, _, valid, token = await ctx.tick().sample(
                    dut.tokens.valid, dut.tokens.payload)
            assert valid
            tokens.append(token)

    run_bench(dut, bench)
    assert tokens == [model(flat), model(flat), again(flat)]
    assert tokens[2] != model(flat)     # or the test could not tell


def test_sums_hold_the_weights_of_every_vocabulary():
    for vocab in (2, 3, 255, 256, 1000):
        params = SamplerParams(S16, 8, vocab)
        assert vocab << 16 < 1 << params.total_bits <= vocab << 17
        assert vocab - 1 < 1 << params.token_bits
    assert Sampler(temperature=0.01).beta < 1 << BETA_BITS
