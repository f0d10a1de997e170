"""The bundled model: small, what it says it is, and as good as it says."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

import sterna.model.data
from sterna.model.bundled import BUNDLED, bundled_heldout
from sterna.model.config import ModelConfig
from sterna.model.evaluate import evaluate
from sterna.model.quantized import load_model

DATA = Path(next(iter(sterna.model.data.__path__)))


@pytest.mark.parametrize(("name", "profile"), [("tiny", "S16"), ("tiny-c12", "C12")])
def test_a_bundled_file_is_small_and_says_where_it_is_from(name: str, profile: str) -> None:
    assert (DATA / BUNDLED[name]).stat().st_size < 400_000
    model = load_model(name)
    assert model.profile.name == profile
    assert model.config == ModelConfig.named("tiny")
    assert set(model.provenance) == {"training", "heldout", "versions"}
    assert model.provenance["heldout"]["text_sha256"] == hashlib.sha256(
        bundled_heldout()).hexdigest()


def test_both_profiles_are_of_one_trained_model() -> None:
    s16, c12 = load_model("tiny"), load_model("tiny-c12")
    assert s16.provenance["training"] == c12.provenance["training"]
    for name, p in s16.projections.items():
        np.testing.assert_array_equal(p.weight, c12.projections[name].weight)


@pytest.mark.parametrize(("name", "loss"), [("tiny", 0.002), ("tiny-c12", 0.004)])
def test_integers_cost_next_to_nothing(name: str, loss: float) -> None:
    held = load_model(name).provenance["heldout"]
    assert held["integer_bpb"] - held["float_bpb"] <= loss


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny", "tiny-c12"])
def test_the_stated_figure_is_what_comes_out(name: str) -> None:
    model = load_model(name)
    result = evaluate(model, bundled_heldout())
    held = model.provenance["heldout"]
    assert round(result.bits_per_byte, 5) == held["integer_bpb"]
    assert result.predictions == held["predictions"] == 41_920
