"""The exact form of the bundled models over thousands of tokens of held-out text."""

from pathlib import Path

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from sterna.export import Session
from sterna.export.forms.forms import build
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.bundled import BUNDLED, BUNDLED_NETWORK, bundled_heldout
from sterna.model.quantized.integer import IntegerModel
from sterna.model.tokenizer import contiguous_sequences

pytestmark = [pytest.mark.slow, pytest.mark.long]
Run = tuple[np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture(scope="module", params=sorted(BUNDLED.keys() - {BUNDLED_NETWORK}))
def model(request: pytest.FixtureRequest) -> QuantizedModel:
    """Each bundled model."""
    return load_model(request.param)


def reference_run(model: QuantizedModel, sequences: int) -> Run:
    """2,048 tokens of held-out text; logits and last state of the reference."""
    text = model.tokenizer.encode(bundled_heldout(model.config.vocab))
    tokens = contiguous_sequences(text, sequences)[:, :2048 // sequences]
    return tokens, *IntegerModel(model).run(tokens)


@pytest.fixture(scope="module", params=[1, 4])
def expected(model: QuantizedModel, request: pytest.FixtureRequest) -> Run:
    """In one sequence or in four."""
    return reference_run(model, request.param)


@pytest.mark.parametrize("form", ["exact", "operators"])
def test_thousands_of_tokens_are_exact(model, expected, form, request):
    """Half of the tokens as a prompt and half step by step; the first half step by step; all."""
    ops: Path | None = None
    if form == "operators":
        form, ops = "exact", request.getfixturevalue("native_ops")
    session = Session(build(model, form), ops=ops)
    tokens, logits, last = expected
    assert tokens.size >= 2000

    def steps(first: int, end: int, state: np.ndarray) -> np.ndarray:
        for t in range(first, end):
            row, state = session.step(tokens[:, t], state)
            np.testing.assert_array_equal(row, logits[:, t], err_msg=f"token {t}")
        return state

    half = tokens.shape[1] // 2
    first, middle = session.run(tokens[:, :half])
    np.testing.assert_array_equal(first, logits[:, :half])
    np.testing.assert_array_equal(steps(half, tokens.shape[1], middle), last)
    # From the end of these the steps above went on.
    np.testing.assert_array_equal(steps(0, half, session.start(len(tokens))), middle)
    everything, state = session.run(tokens)
    np.testing.assert_array_equal(everything, logits)
    np.testing.assert_array_equal(state, last)


def test_the_onnx_evaluator_agrees_over_thousands_of_tokens(model):
    tokens, logits, last = reference_run(model, 16)
    evaluator = ReferenceEvaluator(build(model, one_token=True))
    state = IntegerModel(model).start(16).astype(np.int32)
    for t, token in enumerate(tokens.T):
        row, state = evaluator.run(None, {"tokens": token[:, None], "state": state})
        np.testing.assert_array_equal(row[:, 0], logits[:, t], err_msg=f"token {t}")
    np.testing.assert_array_equal(state, last)
