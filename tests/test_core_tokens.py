"""A core whose tokens are more than bytes have values: its plan at every size, and a run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_sampler_unit import Draw
from test_sampler_unit import check as check_sampler

from sterna.hw.oldcore.plan.core_params import CoreParams
from sterna.hw.oldcore.timing.cycles import CycleModel
from sterna.hw.units.sampler import ArgmaxSampler, SamplerParams
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.quantized.synthetic import random_model
from sterna.model.tokens.bpe_training import train_bpe
from sterna.sim.bench.runner import Engine, Simulator
from sterna.sim.core.simulate import simulate_core

LARGEST = 1 << 16


@pytest.mark.parametrize("vocab", [257, 300, 1024, 16_384, LARGEST])
def test_cycles_grow_by_the_head_and_by_what_the_sampler_reads(vocab: int) -> None:
    def core(tokens: int) -> CycleModel:
        return CycleModel(CoreParams(ModelConfig(128, 4, 384, tokens), S16, 8, 64))

    more = -(-vocab // 8) - 256 // 8            # words of logits
    greedy = core(vocab).cycles_per_token() - core(256).cycles_per_token()
    assert greedy == more * 128 // 64           # two tiles of the head's columns a word
    drawn = core(vocab).cycles_per_token(sampled=True) - core(256).cycles_per_token(sampled=True)
    assert drawn >= greedy + more               # the sum of the weights, a word a cycle


@pytest.mark.long
def test_tokens_of_the_largest_vocabulary_are_drawn_as_by_the_model() -> None:
    rng = np.random.default_rng(4)
    last = np.full(LARGEST, -900)
    last[-1] = 4000
    draws = [Draw(logits, temperature) for logits, temperature in (
        (rng.integers(-40, 40, LARGEST), 1.0), (np.zeros(LARGEST, dtype=np.int64), 100.0),
        (last, 1.0))]
    check_sampler(ArgmaxSampler(SamplerParams(S16, rows=64, vocab=LARGEST)), draws)


@pytest.mark.long
@pytest.mark.parametrize("engine", Engine)
def test_a_core_writes_byte_pairs_as_the_reference(engine: Engine) -> None:
    tokenizer = train_bpe([bundled_heldout()[:6000]], 300)
    model = replace(random_model(ModelConfig(8, 1, 12, 300), C12, seed=3), tokenizer=tokenizer)
    prompt = tokenizer.encode("the format").tolist()
    assert max(prompt) >= 256
    report = simulate_core(model, [prompt], 12, temperature=1.0, engine=engine,
                           simulator=Simulator.VERILATOR, seed=2, rows=4, cols=4)
    assert report.passed
    assert max(report.generated[0]) >= 256
    assert report.cycles_per_token == CycleModel(report.params).cycles_per_token(sampled=True)
