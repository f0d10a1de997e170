"""Long runs of the core: thousands of tokens, a bundled model, tokens that are no bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sterna.hw.core.cycles.model import cycles_per_token
from sterna.hw.core.product.core_product import CORE
from sterna.model.config import ModelConfig
from sterna.model.corpus import Corpus
from sterna.model.profile import C12, S16
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.quantized.synthetic import random_model
from sterna.model.tokenizer import encode
from sterna.model.tokens.bpe_training import train_bpe
from sterna.model.torch.training.quantize import quantize_checkpoint
from sterna.model.torch.training.recipe import Execution
from sterna.model.torch.training.train import train
from sterna.sim.bench.runner import Engine
from sterna.sim.core.simulate import CoreReport, simulate_core
from sterna.sim.units import simulate

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.usefixtures("quick_build")]

PROMPT = encode(b"The for statement").tolist()
OTHER = encode(b"import sys\nclass ").tolist()


def check(report: CoreReport, least_values: int) -> None:
    assert report.failure is None
    assert report.passed
    assert report.checks.reference.values >= least_values
    assert report.checks.onnx.values >= least_values
    assert report.timing.events > 0


SMALLEST = ModelConfig(d=12, layers=2, dff=21, vocab=65)


@pytest.mark.parametrize(("model", "prompts", "tokens", "temperature", "sizes", "cycles"), [
    (partial(random_model, SMALLEST, S16, seed=9), [[3, 0, 41]], 2048, 0.8, (2, 8), None),
    (partial(random_model, SMALLEST, C12, seed=9), [[3, 0, 41]], 2048, 0.0, (2, 8), None),
    (partial(load_model, "tiny"), [PROMPT], 32, 0.8, (8, 64), 2946 + 165),
    (partial(load_model, "tiny-c12"), [PROMPT], 32, 0.0, (8, 64), 2917),
    (partial(load_model, "tiny"), [PROMPT, OTHER], 32, 0.8, (8, 64), None),
    (partial(random_model, ModelConfig(192, 2, 250, 256), S16, seed=4), [PROMPT[:2], OTHER[:3]],
     3, 0.0, (8, 64), None)],
    ids=["S16", "C12", "tiny", "tiny-c12", "two sequences", "wide"])
def test_a_text_is_what_the_oracles_write(
    model: Callable[[], QuantizedModel], prompts: list[list[int]], tokens: int, temperature: float,
    sizes: tuple[int, int], cycles: float | None, tmp_path: Path,
) -> None:
    made = model()
    report = simulate_core(
        made, prompts, tokens, temperature=temperature, seed=11, engine=Engine.CPP,
        work=tmp_path, rows=sizes[0], cols=sizes[1])
    check(report, tokens * (made.config.vocab + 1))
    assert report.timing.events >= tokens
    if len(prompts) > 1:
        assert report.generated[0] != report.generated[1]
    assert cycles in (None, report.cycles_per_token)


def test_every_tensor_of_a_bundled_model(tmp_path: Path) -> None:
    report = simulate_core(
        load_model("tiny"), [PROMPT[:4], OTHER[:3], PROMPT[:1]], 3, temperature=0.7,
        work=tmp_path, rows=4, cols=32)
    check(report, 10 * 22_000)
    assert {phase.name for phase in report.phases} == {
        "text", "prompt after the text", "random pauses", "after a reset in mid-token"}


def test_a_trained_nano_model(tmp_path: Path) -> None:
    text = bundled_heldout()
    result = train(ModelConfig.named("nano"), Corpus("held-out", text[:-4000], text[-4000:]),
                   run_dir=tmp_path / "run", steps=60, quiet=True, execution=Execution(threads=1))
    assert not result.interrupted
    model = quantize_checkpoint(
        tmp_path / "run" / "checkpoint.pt", S16, heldout=text[-400:])
    report = simulate(model, "core", PROMPT, rows=2, cols=32, work=tmp_path)
    check(report, 18 * 5_000)


@pytest.mark.parametrize("engine", Engine)
def test_a_core_writes_byte_pairs_as_the_reference(engine: Engine) -> None:
    tokenizer = train_bpe([bundled_heldout()[:6000]], 300)
    model = replace(random_model(ModelConfig(8, 1, 12, 300), C12, seed=3), tokenizer=tokenizer)
    prompt = tokenizer.encode("the format").tolist()
    assert max(prompt) >= 256
    report = simulate_core(model, [prompt], 12, temperature=1.0, engine=engine, seed=2, rows=4,
                           cols=4)
    assert report.passed
    assert max(report.generated[0]) >= 256
    params = CORE.params_for(model, {"rows": 4, "cols": 4})
    assert report.cycles_per_token == cycles_per_token(params, model.stages, sampled=True)
