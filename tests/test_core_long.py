"""Long runs of the core: thousands of tokens, and the named models at 8 x 128."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sterna.hw.core.plan.core_params import CoreParams
from sterna.hw.core.timing.cycles import CycleModel
from sterna.model.config import ModelConfig
from sterna.model.corpus import Corpus
from sterna.model.profile import C12, S16, NumericProfile
from sterna.model.quantized import load_model
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.quantized.synthetic import random_model
from sterna.model.tokenizer import encode
from sterna.model.training.quantize import quantize_checkpoint
from sterna.model.training.recipe import Execution
from sterna.model.training.train import train
from sterna.sim.bench.runner import Engine
from sterna.sim.core.simulate import CoreReport, simulate_core

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.usefixtures("quick_build")]

PROMPT = encode(b"The for statement").tolist()
OTHER = encode(b"import sys\nclass ").tolist()


def check(report: CoreReport, least_values: int) -> None:
    assert report.failure is None
    assert report.passed
    assert report.checks.reference.values >= least_values
    assert report.checks.onnx.values >= least_values
    assert report.timing.events > 0


@pytest.mark.parametrize("profile", [S16, C12], ids=lambda profile: profile.name)
def test_2048_tokens(profile: NumericProfile, tmp_path: Path) -> None:
    model = random_model(ModelConfig(d=12, layers=2, dff=21, vocab=65), profile, seed=9)
    temperature = {"S16": 0.8, "C12": 0.0}[profile.name]
    report = simulate_core(
        model, [[3, 0, 41]], 2048, temperature=temperature, seed=11, engine=Engine.CPP,
        work=tmp_path, rows=2, cols=8)
    check(report, 2048 * 66)
    assert report.timing.events == 2048


@pytest.mark.parametrize("name", ["tiny", "tiny-c12"])
def test_a_bundled_model_at_its_size(name: str, tmp_path: Path) -> None:
    model = load_model(name)
    temperature = {"S16": 0.8, "C12": 0.0}[model.profile.name]
    report = simulate_core(
        model, [PROMPT], 32, temperature=temperature, seed=11, engine=Engine.CPP, work=tmp_path)
    check(report, 32 * 257)
    greedy = {"S16": 1599, "C12": 1570}[model.profile.name]
    assert report.cycles_per_token == greedy + (84 if temperature else 0)


def test_every_tensor_of_a_bundled_model(tmp_path: Path) -> None:
    report = simulate_core(
        load_model("tiny"), [PROMPT[:4]], 6, temperature=0.7, work=tmp_path, rows=4, cols=32)
    check(report, 10 * 22_000)
    assert {phase.name for phase in report.phases} == {
        "text", "prompt after the text", "random pauses", "after a reset in mid-token"}


def test_two_sequences_of_a_bundled_model_are_what_each_is_alone(tmp_path: Path) -> None:
    model = load_model("tiny")
    report = simulate_core(
        model, [PROMPT, OTHER], 48, temperature=0.8, engine=Engine.CPP, work=tmp_path)
    check(report, 2 * 48 * 257)
    assert report.generated[0] != report.generated[1]
    assert report.cycles_per_token == 1005.5


def test_an_untrained_small_model(tmp_path: Path) -> None:
    """On a small array; what the usual one would do, says the cycle model."""
    model = random_model(ModelConfig.named("small"), S16, seed=4)
    report = simulate_core(
        model, [PROMPT[:2], OTHER[:3]], 3, engine=Engine.CPP, work=tmp_path, rows=2, cols=32)
    check(report, 3 * 257)
    usual = CoreParams(model.config, S16)
    assert CycleModel(replace(usual, sequences=2)).utilisation() >= 0.95
    assert CycleModel(usual).utilisation() >= 0.82


def test_a_model_of_two_layers_meets_its_cycles() -> None:
    params = CoreParams(ModelConfig(128, 2, 352), S16)
    assert CycleModel(params).cycles_per_token() == 829


def test_a_trained_nano_model(tmp_path: Path) -> None:
    text = bundled_heldout()
    result = train(ModelConfig.named("nano"), Corpus("held-out", text[:-4000], text[-4000:]),
                   run_dir=tmp_path / "run", steps=60, quiet=True, execution=Execution(threads=1))
    assert not result.interrupted
    model = quantize_checkpoint(
        tmp_path / "run" / "checkpoint.pt", S16, heldout=text[-400:])
    report = simulate_core(model, [PROMPT], 12, rows=2, cols=32, work=tmp_path)
    check(report, 20 * 5_000)
