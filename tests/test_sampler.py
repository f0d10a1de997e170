"""The sampler in gateware against the one of the model, in Amaranth's simulator."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from sterna.hw.core.compute.logit_weight import BETA_BITS, WeightParams
from sterna.hw.core.compute.sampler import TokenSampler
from sterna.hw.core.cycles.report import shape_stages
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.core.params.limits import Limits
from sterna.hw.testbench.amaranth import run_bench
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16, FixedPoint
from sterna.model.quantized.plan import StageKind
from sterna.model.quantized.sampling import Sampler

# Lanes and vocabularies: whole words and others, one word, a lane.
SHAPES = [(8, 256), (8, 65), (8, 5), (4, 4), (2, 65), (1, 2), (1, 9), (16, 33)]
TEMPERATURES = [0.01, 0.3, 0.7, 1.0, 2.0, 100.0]


@dataclass
class Draw:
    """Logits of a sequence, and what goes with them."""

    logits: np.ndarray
    temperature: float = 0.0
    seed: int | None = None         # seed anew before them
    wanted: bool = True             # whether a token is asked for


def params_of(lanes: int, vocab: int, sequences: int = 1, profile=S16, **changes) -> CoreParams:
    stages = shape_stages(ModelConfig(16, 1, 16, vocab), profile)
    return CoreParams(Limits.of_stages(profile, [stages], (8, 9), 8), rows=lanes, cols=16 * lanes,
                      quant_lanes=lanes, post_lanes=lanes, sequences=sequences, **changes)


def run_rounds(params: CoreParams, rounds: list[list[Draw]]) -> list[list[tuple[int, int]]]:
    """For each round, a draw for each sequence of phase 0, the tokens and their cycles, counted
    from the last logits on."""
    dut = TokenSampler(params)
    lanes, vocab, batch = params.post_lanes, params.vocab, params.batch
    words = -(-vocab // lanes)
    fmt = params.profile.logit
    found: list[list[tuple[int, int]]] = []

    async def seed(ctx, sequence: int, value: int) -> None:
        ctx.set(dut.choices.reseed, 1)
        ctx.set(dut.choices.seed, value)
        ctx.set(dut.choices.seed_owner, sequence)
        await ctx.tick()
        ctx.set(dut.choices.reseed, 0)

    async def bench(ctx) -> None:
        ctx.set(dut.stages[0].outputs, vocab)
        for sequence in range(batch):
            await seed(ctx, sequence, 1)
        for draws in rounds:
            betas = [Sampler(temperature=draw.temperature).beta for draw in draws]
            flags = [sum(bool(flag) << index for index, flag in enumerate(each))
                     for each in ([draw.wanted for draw in draws], betas)]
            ctx.set(dut.choices.wanted, flags[0])
            ctx.set(dut.choices.warm, flags[1])
            for sequence, draw in enumerate(draws):
                if draw.seed is not None:
                    await seed(ctx, sequence, draw.seed)
            # Rows beyond the vocabulary have the least logit there is.
            padded = [np.pad(draw.logits, (0, words * lanes - vocab), constant_values=fmt.min)
                      for draw in draws]
            for word in range(words):
                for sequence in range(batch):
                    ctx.set(dut.results_valid, 1)
                    ctx.set(dut.results.tag, {
                        "kind": StageKind.HEAD, "slot": 0, "phase": 0, "sequence": sequence,
                        "beat": word, "first": word == 0, "last": word == words - 1})
                    ctx.set(dut.results.logits, padded[sequence][
                        word * lanes:(word + 1) * lanes].tolist())
                    await ctx.tick()
            ctx.set(dut.results_valid, 0)
            found.append([])
            for cycle in range(40 * (words + 40) * batch):
                ctx.set(dut.choices.beta, betas[ctx.get(dut.choices.owner) % batch])
                if ctx.get(dut.choices.sampled):
                    assert ctx.get(dut.choices.sequence) == len(found[-1])
                    found[-1].append((ctx.get(dut.choices.token), cycle))
                if len(found[-1]) == batch:
                    break
                await ctx.tick()
            await ctx.tick()

    run_bench(dut, bench)
    return found


def expected(params: CoreParams, rounds: list[list[Draw]]) -> list[list[int]]:
    """Tokens of the model's sampler; the random numbers of a sequence go on from draw to draw."""
    states = [1] * params.batch
    tokens: list[list[int]] = []
    for draws in rounds:
        tokens.append([])
        for sequence, draw in enumerate(draws):
            if draw.seed is not None:
                states[sequence] = draw.seed or 1
            warm = draw.temperature if draw.wanted and not params.compact else 0.0
            sampler = Sampler(temperature=warm, logit_frac=params.profile.logit.frac,
                              seed=states[sequence])
            tokens[-1].append(sampler(draw.logits))
            states[sequence] = sampler.state
    return tokens


def check(params: CoreParams, rounds: list[list[Draw]]) -> list[list[int]]:
    found = [[token for token, _ in each] for each in run_rounds(params, rounds)]
    assert found == expected(params, rounds)
    return found


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


@pytest.mark.parametrize(("lanes", "vocab"), SHAPES)
def test_greedy_extremes_and_ties_take_the_lowest_index(lanes, vocab):
    fmt = S16.logit
    vectors = [np.full(vocab, value) for value in (fmt.min, fmt.max, 0)]
    for index in {0, vocab // 2, vocab - 1}:
        vector = np.full(vocab, fmt.min)
        vector[index:] = fmt.max
        vectors.append(vector)
    check(params_of(lanes, vocab), [[Draw(vector)] for vector in vectors])


@pytest.mark.parametrize(("lanes", "vocab", "sequences", "changes"), [
    (lanes, vocab, (1, 4, 2)[index % 3], {"compact": True} if index in (2, 6) else {})
    for index, (lanes, vocab) in enumerate(SHAPES)], ids=str)
def test_tokens_equal_the_model(lanes, vocab, sequences, changes):
    """Some of them asked for, some greedy, some with a new seed."""
    rng = np.random.default_rng(vocab)
    params = params_of(lanes, vocab, sequences, phases=1, **changes)
    check(params, [[Draw(
        random_logits(rng, vocab, S16.logit), float(rng.choice([0, *TEMPERATURES])),
        int(rng.integers(1, 1 << 32)) if rng.random() < 0.2 else None, bool(rng.random() < 0.8))
        for _ in range(sequences)] for _ in range(24 // sequences)])


@pytest.mark.parametrize(("fmt", "lanes", "vocab", "temperatures"), [
    (S16.logit, 8, 65, [1.0]), (S16.logit, 8, 65, [100.0]),
    (S16.logit, 16, 1000, [1.0, 0.0, 100.0, 0.5]),
    *((FixedPoint(bits, frac), 2, 17, [0, *TEMPERATURES])
      for bits, frac in ((12, 0), (20, 12), (24, 24)))], ids=str)
def test_many_draws_equal_the_model(fmt, lanes, vocab, temperatures):
    rng = np.random.default_rng(11)
    profile = replace(C12, logit=fmt)
    assert WeightParams(profile, vocab).exponent_shift == fmt.frac + 4
    tokens = check(params_of(lanes, vocab, profile=profile), [[Draw(
        random_logits(rng, vocab, fmt) if lanes == 2 else rng.integers(-900, 900, vocab),
        temperatures[index % len(temperatures)])] for index in range(60 if vocab < 100 else 6)])
    if temperatures in ([1.0], [100.0]):
        assert len({token for token, in tokens}) > 20


@pytest.mark.parametrize(("lanes", "vocab"), SHAPES[1:])
def test_extreme_random_numbers_and_weights(lanes, vocab):
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
    numbers = (1, (1 << 32) - 1, 1 << 31, 0xFFFF, 0xFFFF_0000)
    draws = [Draw(vector, 1.0, before(number)) for vector in vectors for number in numbers]
    for draw in draws:
        sampler = Sampler(temperature=1.0, seed=draw.seed)
        sampler(draw.logits)
        assert sampler.state in numbers
    check(params_of(lanes, vocab), [[draw] for draw in draws])


def before(number: int) -> int:
    """The state of the generator from which it draws ``number``."""
    mask = (1 << 32) - 1
    for shift in (-5, 17, -13):
        value = number
        for _ in range(32):
            value = number ^ ((value << -shift) & mask if shift < 0 else value >> shift)
        number = value
    return number


def test_a_draw_takes_as_long_whatever_the_logits():
    rng = np.random.default_rng(13)
    for lanes, vocab in ((8, 65), (1, 9)):
        found = run_rounds(params_of(lanes, vocab), [
            [Draw(random_logits(rng, vocab, S16.logit), temperature)]
            for temperature in (1.0, 0.0, 0.01, 100.0, 0.0, 2.0)])
        cycles = [cycle for (_, cycle), in found]
        assert len({cycles[at] for at in (0, 2, 3, 5)}) == len({cycles[at] for at in (1, 4)}) == 1


def test_seeds_begin_the_same_numbers_and_zero_counts_as_one():
    flat = np.zeros(8, dtype=int)
    tokens = check(params_of(2, 8), [
        [Draw(flat, 1.0, seed if t == 0 else None)] for seed in (1, 0, 77, 77) for t in range(12)])
    assert tokens[:12] == tokens[12:24] != tokens[24:36]
    assert tokens[24:36] == tokens[36:]


@pytest.mark.long
def test_tokens_of_the_largest_vocabulary_are_drawn_as_by_the_model() -> None:
    largest = 1 << 16
    rng = np.random.default_rng(4)
    last = np.full(largest, -900)
    last[-1] = 4000
    check(params_of(64, largest), [[Draw(logits, temperature)] for logits, temperature in (
        (rng.integers(-40, 40, largest), 1.0), (np.zeros(largest, dtype=np.int64), 100.0),
        (last, 1.0))])


def test_sums_hold_the_weights_of_every_vocabulary():
    for vocab in (2, 3, 255, 256, 1000):
        assert vocab << 16 < 1 << WeightParams(S16, vocab).total_bits <= vocab << 17
    assert Sampler(temperature=0.01).beta < 1 << BETA_BITS
