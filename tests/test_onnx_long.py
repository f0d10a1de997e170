"""The exact graphs of the bundled models over thousands of tokens of held-out text."""

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from sterna.export.check import check_exact
from sterna.export.traced import build_sequence, build_step
from sterna.model.bundled import BUNDLED, bundled_heldout
from sterna.model.integer import IntegerModel
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.tokenizer import contiguous_streams, encode

pytestmark = pytest.mark.slow

STREAMS, LENGTH = 2, 1024


@pytest.fixture(scope="module", params=sorted(BUNDLED))
def model(request: pytest.FixtureRequest) -> QuantizedModel:
    """Each bundled model."""
    return load_model(request.param)


@pytest.fixture(scope="module")
def tokens(model: QuantizedModel) -> np.ndarray:
    """More than 2,000 tokens of held-out text, int64 ``[STREAMS, LENGTH]``."""
    return contiguous_streams(encode(bundled_heldout(model.config.vocab)), STREAMS)[:, :LENGTH]


@pytest.mark.parametrize("build", [build_step, build_sequence])
def test_thousands_of_tokens_are_exact(model: QuantizedModel, tokens: np.ndarray, build) -> None:
    report = check_exact(model, build(model), tokens)
    assert report.passed, str(report)
    assert report.tokens == STREAMS * LENGTH >= 2000
    assert report.logits.values == report.tokens * model.config.vocab


@pytest.mark.long
def test_the_onnx_evaluator_agrees_over_thousands_of_tokens(
    model: QuantizedModel, tokens: np.ndarray,
) -> None:
    evaluator, reference = ReferenceEvaluator(build_step(model)), IntegerModel(model)
    expected_state = reference.start(STREAMS)
    state = expected_state.astype(np.int32)
    for t, token in enumerate(tokens.T):
        expected, expected_state = reference.step(token, expected_state)
        logits, state = evaluator.run(None, {"token": token, "state": state})
        np.testing.assert_array_equal(logits, expected, err_msg=f"logits at token {t}")
        np.testing.assert_array_equal(state, expected_state, err_msg=f"state at token {t}")
