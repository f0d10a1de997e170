"""Comparisons count, add up and name the first difference."""

import numpy as np
import pytest

from sterna.model.quantized.compare import Comparison, Difference, compare


def test_differences_are_counted_and_the_first_is_by_token_then_by_index():
    expected = np.zeros((3, 2, 5), dtype=np.int64)
    got = expected.astype(np.float64)
    assert compare("logits", expected, got) == Comparison(30, 0, None)
    got[1, 1, 2], got[1, 1, 4], got[2, 0, 0] = -7, 1, 1
    result = compare("layer12.glu.up.acc", expected, got, first_token=100)
    assert (result.values, result.mismatches, result.passed) == (30, 3, False)
    assert result.first == Difference(101, 12, "layer12.glu.up.acc", (1, 2), 0, -7)
    assert str(result) == (
        "30 values compared, 3 mismatches; first: token 101, layer 12, "
        "layer12.glu.up.acc[1, 2]: expected 0, got -7")


@pytest.mark.parametrize("name", ["embedding.x", "head.norm.q", "logits"])
def test_tensors_outside_the_layers_have_no_layer(name):
    difference = compare(name, np.array([1]), np.array([2])).first
    assert difference == Difference(0, None, name, (), 1, 2)
    assert "layer" not in str(difference)


def test_a_sum_keeps_the_earliest_token_and_comparing_nothing_does_not_pass():
    late = Comparison(10, 1, Difference(9, None, "logits", (0,), 1, 2))
    early = Comparison(5, 2, Difference(3, None, "logits", (0,), 1, 2))
    assert late + early + Comparison(7) == Comparison(22, 3, early.first)
    assert not Comparison().passed
    assert not compare("logits", np.zeros((0, 3)), np.zeros((0, 3))).passed


@pytest.mark.parametrize(("one", "other"), [((2, 3), (3, 2)), ((6,), (2, 3)), ((), ())])
def test_other_shapes_are_refused(one, other):
    with pytest.raises(ValueError, match=r"logits: expected shape \[tokens, ...\] = \["):
        compare("logits", np.zeros(one), np.zeros(other))
