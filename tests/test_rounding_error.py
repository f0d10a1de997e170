"""What rounding to integers costs, measured against float64."""

from __future__ import annotations

import numpy as np
import pytest

from sterna.export.float.reference import float_logits, rounding_errors
from sterna.model.quantized import load_model
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.taps import TapRecorder
from sterna.model.tokenizer import encode


@pytest.fixture(scope="module")
def errors():
    model = load_model("micro")
    tokens = encode(bundled_heldout(model.config.vocab))[:256].reshape(8, 32)
    return {each.name: each for each in rounding_errors(model, tokens)}


def test_every_layer_and_the_logits_have_an_error_of_a_few_per_cent(errors):
    assert list(errors) == ["layer0.mlgru.h", "layer0.mlgru.x", "layer0.glu.p", "layer0.glu.x",
                            "logits"]
    for each in errors.values():
        assert 0 < each.relative < 0.1
        assert 0 <= each.saturated < 0.05
    assert errors["layer0.glu.p"].values == 8 * 32 * 64


def test_the_figures_are_those_of_both_computations():
    model = load_model("micro")
    tokens = np.arange(65, 97).reshape(2, 16)
    found = {each.name: each for each in rounding_errors(model, tokens)}
    seen = TapRecorder(["layer0.glu.x"])
    whole, _ = IntegerModel(model).run(tokens, tap=seen)
    real = float_logits(model, tokens, saturate=True)
    difference = whole / 2 ** model.profile.logit.frac - real
    assert found["logits"].relative == pytest.approx(
        np.linalg.norm(difference) / np.linalg.norm(real))
    x = seen["layer0.glu.x"]
    limits = np.isin(x, (model.profile.x.min, model.profile.x.max))
    assert limits.any()
    assert found["layer0.glu.x"].saturated == limits.mean()
