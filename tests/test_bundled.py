"""The bundled models: small, what they say they are, and as good as they say."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sterna.model.data
from sterna.hw.core.cycles.model import cycles_per_token
from sterna.hw.core.product.core_product import CORE
from sterna.model.config import ModelConfig
from sterna.model.quantized import load_model
from sterna.model.quantized.bundled import BUNDLED, bundled_heldout, bundled_metrics
from sterna.model.quantized.evaluate import evaluate

DATA = Path(next(iter(sterna.model.data.__path__)))


@pytest.mark.parametrize(("name", "profile", "config", "size", "loss"), [
    ("tiny", "S16", "tiny", 400_000, 0.002), ("tiny-c12", "C12", "tiny", 400_000, 0.004),
    ("micro", "C12", "micro", 21_000, 0.006), ("tiny-bpe", "S16", "tiny", 700_000, 0.002)])
def test_a_bundled_file_is_small_says_where_it_is_from_and_integers_cost_next_to_nothing(
    name: str, profile: str, config: str, size: int, loss: float,
) -> None:
    assert (DATA / BUNDLED[name]).stat().st_size < size
    model = load_model(name)
    assert model.profile.name == profile
    assert model.config == replace(
        ModelConfig.named(config), vocab=model.tokenizer.vocab)
    assert set(model.provenance) == {"training", "heldout", "versions"}
    held = model.provenance["heldout"]
    assert held["integer_bpb"] - held["float_bpb"] <= loss
    assert held["text_sha256"] == hashlib.sha256(
        bundled_heldout(model.config.vocab)).hexdigest()
    steps = model.provenance["training"]["steps"]
    last = bundled_metrics(name).read_text().splitlines()[-1].split(",")
    assert int(last[0]) == steps
    assert round(float(last[4]), 4) == round(held["float_bpb"], 4)


def test_the_text_for_an_ascii_model_is_ascii() -> None:
    assert max(bundled_heldout()) > 127 >= max(bundled_heldout(128))
    assert bundled_heldout(129) == bundled_heldout(256) == bundled_heldout()


def test_both_profiles_are_of_one_trained_model() -> None:
    s16, c12 = load_model("tiny"), load_model("tiny-c12")
    assert s16.provenance["training"] == c12.provenance["training"]
    for name, p in s16.projections.items():
        np.testing.assert_array_equal(p.weight, c12.projections[name].weight)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "predictions"), [
    pytest.param("tiny", 41_920, marks=pytest.mark.long),
    pytest.param("tiny-c12", 41_920, marks=pytest.mark.long), ("micro", 41_856),
    pytest.param("tiny-bpe", 14_912, marks=pytest.mark.long)])
def test_the_stated_figure_is_what_comes_out(name: str, predictions: int) -> None:
    model = load_model(name)
    result = evaluate(model, bundled_heldout(model.config.vocab))
    held = model.provenance["heldout"]
    assert round(result.bits_per_byte, 5) == held["integer_bpb"]
    assert result.predictions == held["predictions"] == predictions


def test_byte_pairs_beat_bytes_in_bits_and_in_text_per_second() -> None:
    """On the same array a token takes longer and spells more."""
    pairs, single = load_model("tiny-bpe"), load_model("tiny")
    assert pairs.provenance["heldout"]["integer_bpb"] < single.provenance["heldout"]["integer_bpb"]
    cycles = [cycles_per_token(CORE.params_for(model, {}), model.stages, sampled=True)
              for model in (pairs, single)]
    text = bundled_heldout()
    bytes_per_token = len(text) / len(pairs.tokenizer.encode(text))
    assert bytes_per_token * cycles[1] / cycles[0] > 2.2
