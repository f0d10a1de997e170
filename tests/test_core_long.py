"""Long runs of the core: thousands of tokens, and the named models at 8 x 128."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sterna.hw.catalog import emit_verilog
from sterna.hw.core.timing.cycles import CycleModel
from sterna.hw.emit.folder import EmittedUnit
from sterna.model.config import ModelConfig
from sterna.model.corpus import Corpus
from sterna.model.profile import S16
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.quantized.synthetic import random_model
from sterna.model.tokenizer import encode
from sterna.model.training.quantize import quantize_checkpoint
from sterna.model.training.train import train
from sterna.sim.core.engine import Engine
from sterna.sim.core.simulate import CoreReport, simulate_core

pytestmark = [pytest.mark.slow, pytest.mark.long]

PROMPT = encode(b"The for statement").tolist()
OTHER = encode(b"import sys\nclass ").tolist()


def check(report: CoreReport, least_values: int) -> None:
    assert report.failure is None
    assert report.passed
    assert report.checks.reference.values >= least_values
    assert report.checks.onnx.values >= least_values
    assert report.timing.events > 0


@pytest.fixture(scope="module", params=["tiny", "tiny-c12"])
def bundled(request, tmp_path_factory) -> tuple[QuantizedModel, EmittedUnit, Path]:
    model = load_model(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    return model, emit_verilog(model, "core", folder / "core"), folder


def test_2048_tokens_of_a_bundled_model(bundled) -> None:
    model, emitted, folder = bundled
    temperature = {"S16": 0.8, "C12": 0.0}[model.profile.name]
    report = simulate_core(
        model, [PROMPT], 2048, temperature=temperature, seed=11, engine=Engine.CPP,
        work=folder, emitted=emitted)
    check(report, 2048 * 257)
    assert report.timing.events == 2048
    greedy = {"S16": 1599, "C12": 1570}[model.profile.name]
    assert report.cycles_per_token == greedy + (84 if temperature else 0)


@pytest.mark.parametrize("name", ["tiny", "tiny-c12"])
def test_every_tensor_of_64_tokens_of_a_bundled_model(name: str, tmp_path: Path) -> None:
    model = load_model(name)
    report = simulate_core(model, [PROMPT], 48, temperature=0.7, work=tmp_path)
    check(report, 64 * 22_000)
    assert {phase.name for phase in report.phases} == {
        "text", "prompt after the text", "random pauses", "after a reset in mid-token"}


def test_two_sequences_of_a_bundled_model_are_what_each_is_alone(tmp_path: Path) -> None:
    model = load_model("tiny")
    report = simulate_core(
        model, [PROMPT, OTHER], 1024, temperature=0.8, engine=Engine.CPP, work=tmp_path)
    check(report, 2 * 1024 * 257)
    assert report.generated[0] != report.generated[1]
    assert report.cycles_per_token == 1005.5


def test_an_untrained_small_model(tmp_path: Path) -> None:
    """Two sequences are simulated; one by the cycle model, which the tests above hold to it."""
    model = random_model(ModelConfig.named("small"), S16, seed=4)
    report = simulate_core(
        model, [PROMPT[:2], OTHER[:3]], 6, engine=Engine.CPP, work=tmp_path)
    check(report, 6 * 257)
    assert report.utilisation is not None
    assert report.utilisation >= 0.95
    assert CycleModel(replace(report.params, sequences=1)).utilisation() >= 0.82


def test_a_model_of_two_layers_meets_its_cycles(tmp_path: Path) -> None:
    model = random_model(ModelConfig(128, 2, 352), S16, seed=5)
    report = simulate_core(model, [PROMPT[:3]], 4, work=tmp_path)
    check(report, 4 * 12_000)
    assert report.cycles_per_token is not None
    assert report.cycles_per_token == 829


def test_a_trained_nano_model(tmp_path: Path) -> None:
    text = bundled_heldout()
    result = train(
        ModelConfig.named("nano"), Corpus("held-out", text[:-4000], text[-4000:]),
        run_dir=tmp_path / "run", steps=60, threads=1, quiet=True)
    assert not result.interrupted
    model = quantize_checkpoint(
        tmp_path / "run" / "checkpoint.pt", S16, heldout=text[-400:])
    report = simulate_core(model, [PROMPT], 12, cols=64, work=tmp_path)
    check(report, 20 * 5_000)
