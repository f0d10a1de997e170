"""The exact forms of the bundled models over thousands of tokens of held-out text."""

from pathlib import Path

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from sterna.export import Session
from sterna.export.exact.traced import build_step
from sterna.export.forms.forms import Form, build
from sterna.export.graph.metadata import GraphKind
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.bundled import BUNDLED, bundled_heldout
from sterna.model.quantized.integer import IntegerModel
from sterna.model.tokenizer import contiguous_sequences

pytestmark = [pytest.mark.slow, pytest.mark.long]

SEQUENCES, LENGTH = 16, 128


@pytest.fixture(scope="module", params=sorted(BUNDLED))
def model(request: pytest.FixtureRequest) -> QuantizedModel:
    """Each bundled model."""
    return load_model(request.param)


@pytest.fixture(scope="module")
def tokens(model: QuantizedModel) -> np.ndarray:
    """More than 2,000 tokens of held-out text, int64 ``[SEQUENCES, LENGTH]``."""
    text = model.tokenizer.encode(bundled_heldout(model.config.vocab))
    return contiguous_sequences(text, SEQUENCES)[:, :LENGTH]


@pytest.fixture(scope="module", params=[1, 4])
def expected(
    model: QuantizedModel, request: pytest.FixtureRequest,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """2,048 tokens in one sequence or in four; logits and last state of the reference."""
    text = model.tokenizer.encode(bundled_heldout(model.config.vocab))
    tokens = contiguous_sequences(text, request.param)[:, :2048 // request.param]
    return tokens, *IntegerModel(model).run(tokens)


EXACT = [form for form in Form if form.exact]


@pytest.mark.parametrize("form", EXACT, ids=lambda form: form.value)
def test_thousands_of_tokens_are_exact(
    model: QuantizedModel, expected: tuple[np.ndarray, np.ndarray, np.ndarray], form: Form,
) -> None:
    tokens, logits, last = expected
    assert tokens.size >= 2000
    session = Session(build(model, form, GraphKind.STEP),
                      sequence=build(model, form, GraphKind.SEQUENCE))
    _check_run(session, tokens, logits, last)


def test_the_compiled_operators_are_exact_over_thousands_of_tokens(
    model: QuantizedModel, expected: tuple[np.ndarray, np.ndarray, np.ndarray],
    native_ops: Path,
) -> None:
    session = Session(build(model, "exact", GraphKind.STEP),
                      sequence=build(model, "exact", GraphKind.SEQUENCE), ops=native_ops)
    _check_run(session, *expected)


def _check_run(
    session: Session, tokens: np.ndarray, logits: np.ndarray, last: np.ndarray,
) -> None:
    """Half of the tokens as a prompt and half step by step; the first half step by step; all."""
    half = tokens.shape[1] // 2
    first, middle = session.run(tokens[:, :half])
    np.testing.assert_array_equal(first, logits[:, :half])
    state = middle
    for t in range(half, tokens.shape[1]):
        row, state = session.step(tokens[:, t], state)
        np.testing.assert_array_equal(row, logits[:, t], err_msg=f"token {t}")
    np.testing.assert_array_equal(state, last)
    state = session.start(len(tokens))
    for t in range(half):
        row, state = session.step(tokens[:, t], state)
        np.testing.assert_array_equal(row, logits[:, t], err_msg=f"token {t}, steps alone")
    # From here the steps above went on.
    np.testing.assert_array_equal(state, middle)
    everything, state = session.run(tokens)
    np.testing.assert_array_equal(everything, logits)
    np.testing.assert_array_equal(state, last)


def test_the_onnx_evaluator_agrees_over_thousands_of_tokens(
    model: QuantizedModel, tokens: np.ndarray,
) -> None:
    evaluator, reference = ReferenceEvaluator(build_step(model)), IntegerModel(model)
    expected_state = reference.start(SEQUENCES)
    state = expected_state.astype(np.int32)
    for t, token in enumerate(tokens.T):
        expected, expected_state = reference.step(token, expected_state)
        logits, state = evaluator.run(None, {"token": token, "state": state})
        np.testing.assert_array_equal(logits, expected, err_msg=f"logits at token {t}")
        np.testing.assert_array_equal(state, expected_state, err_msg=f"state at token {t}")
