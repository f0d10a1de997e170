"""A wrong weight, table entry, shift, bias, embedding or formula in a graph is found, and named."""

from dataclasses import replace

import numpy as np
import pytest

from sterna.export.forms.forms import build
from sterna.export.runtime.check import check_exact
from sterna.model.quantized import Projection, QuantizedModel
from sterna.model.quantized.compare import Difference
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.taps import TapRecorder

both_graphs = pytest.mark.parametrize("one_token", [False, True], ids=["any", "one token"])


def _tokens(model: QuantizedModel) -> np.ndarray:
    return np.random.default_rng(8).integers(0, model.config.vocab, (2, 24))


def _first(model: QuantizedModel, one_token: bool, **changes: object) -> Difference:
    """The first difference that a changed model's graph shows, after the right one's has none."""
    tokens = _tokens(model)
    assert check_exact(model, build(model, one_token=one_token), tokens).passed
    report = check_exact(model, build(replace(model, **changes), one_token=one_token), tokens)
    assert not report.passed
    assert not report.same_model
    assert "was exported from another quantised model" in str(report)
    assert report.first is not None
    assert str(report.first) in str(report)
    return report.first


def _other(projection: Projection, part: str) -> Projection:
    weight, bias, shift = projection.weight.copy(), projection.bias.copy(), projection.shift
    if part == "weight":
        weight[3, 5] = -1 if weight[3, 5] == 1 else weight[3, 5] + 1
    elif part == "bias":
        bias[2] ^= 1
    else:
        shift += 1
    return replace(projection, weight=weight, bias=bias, shift=shift)


@both_graphs
@pytest.mark.parametrize(("name", "part", "tensor", "row", "most"), [
    *((name, "weight", "acc", 3, 254) for name in (
        "layer1.mlgru.c", "layer0.mlgru.out", "layer1.glu.up", "layer0.glu.down", "head")),
    *((name, "shift", "z", None, None) for name in (
        "layer0.mlgru.g", "layer1.mlgru.out", "layer1.glu.gate")),
    ("layer1.mlgru.f", "bias", "z", 2, 1)])
def test_what_is_wrong_with_a_projection_is_named(
    odd_model, one_token, name, part, tensor, row, most,
):
    first = _first(odd_model, one_token, projections={
        **odd_model.projections, name: _other(odd_model.projections[name], part)})
    assert first.tensor == f"{name}.{tensor}"
    assert first.layer == (None if name == "head" else int(name[5]))
    if row is None:
        assert first.token == 0
    else:
        assert first.index[-1] == row
        assert 1 <= abs(first.got - first.expected) <= most


@both_graphs
def test_a_wrong_entry_of_the_sigmoid_table_is_named(odd_model, one_token):
    middle = len(odd_model.sigmoid) // 2
    sigmoid = odd_model.sigmoid.copy()
    sigmoid[middle] += 1
    first = _first(odd_model, one_token, sigmoid=sigmoid)
    assert first.tensor.endswith(".sigmoid")
    assert first.got == first.expected + 1
    taps = TapRecorder()
    IntegerModel(odd_model).run(_tokens(odd_model), tap=taps)
    z = taps[first.tensor.replace("sigmoid", "z")][(first.token, *first.index)]
    step = odd_model.profile.sigmoid_step_bits
    assert abs(((z - odd_model.profile.z.min) >> step) - middle) <= 1


@both_graphs
def test_one_wrong_embedding_is_named_with_its_token(odd_model, one_token):
    tokens = _tokens(odd_model)
    late = tokens[1, 17]
    embedding = odd_model.embedding.copy()
    embedding[late, 4] //= 2
    where = np.argwhere(late == tokens.T)[0]
    assert _first(odd_model, one_token, table=embedding) == Difference(
        int(where[0]), None, "embedding.x", (int(where[1]), 4),
        int(odd_model.embedding[late, 4]), int(embedding[late, 4]))


@both_graphs
def test_a_wrong_formula_is_named(odd_model, one_token):
    proto = build(odd_model, one_token=one_token)
    nodes = list(proto.graph.node)
    if not one_token:
        scan = next(node for node in nodes if node.op_type == "Scan")
        nodes = list(next(each.g for each in scan.attribute if each.name == "body").node)
    subtract = next(node for node in nodes if node.op_type == "Sub"
                    and (not one_token or "layer0.mlgru.h_in" in node.input))
    subtract.input[0], subtract.input[1] = subtract.input[1], subtract.input[0]
    report = check_exact(odd_model, proto, _tokens(odd_model))
    assert report.same_model
    assert report.first is not None
    assert (report.first.tensor, report.first.token) == ("layer0.mlgru.h", 0)
