"""A wrong weight, table entry or shift in a graph is found, and named."""

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx
import pytest

from sterna.export.exact.traced import build_sequence, build_step
from sterna.export.runtime.check import ExactReport, check_exact
from sterna.model.quantized import Projection, QuantizedModel
from sterna.model.quantized.compare import Difference
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.taps import TapRecorder

LENGTH = 24


def _with_projection(
    model: QuantizedModel, name: str, change: Callable[[Projection], Projection],
) -> QuantizedModel:
    projections = dict(model.projections)
    projections[name] = change(projections[name])
    return dataclasses.replace(model, projections=projections)


def _flip_weight(projection: Projection) -> Projection:
    weight = projection.weight.copy()
    weight[3, 5] = -1 if weight[3, 5] == 1 else weight[3, 5] + 1
    return dataclasses.replace(projection, weight=weight)


def _tokens(model: QuantizedModel) -> np.ndarray:
    return np.random.default_rng(8).integers(0, model.config.vocab, (2, LENGTH))


def _check(model: QuantizedModel, faulty: QuantizedModel, build) -> tuple[ExactReport, Difference]:
    tokens = _tokens(model)
    assert check_exact(model, build(model), tokens).passed
    report = check_exact(model, build(faulty), tokens)
    assert not report.passed
    assert not report.same_model
    assert report.first is not None
    return report, report.first


both_graphs = pytest.mark.parametrize("build", [build_step, build_sequence])


@both_graphs
@pytest.mark.parametrize("name", [
    "layer1.mlgru.c", "layer0.mlgru.out", "layer1.glu.up", "layer0.glu.down", "head"])
def test_a_wrong_weight_is_named(odd_model: QuantizedModel, build, name: str) -> None:
    report, first = _check(odd_model, _with_projection(odd_model, name, _flip_weight), build)
    assert first.tensor == f"{name}.acc"
    assert first.layer == (None if name == "head" else int(name[5]))
    assert first.index[-1] == 3
    assert abs(first.got - first.expected) in range(1, 255)
    assert f"{name}.acc[{first.index[0]}, 3]: expected {first.expected}" in str(report)
    assert "was exported from another quantised model" in str(report)


@both_graphs
def test_a_wrong_entry_of_the_sigmoid_table_is_named(odd_model: QuantizedModel, build) -> None:
    middle = len(odd_model.sigmoid) // 2
    sigmoid = odd_model.sigmoid.copy()
    sigmoid[middle] += 1
    _, first = _check(odd_model, dataclasses.replace(odd_model, sigmoid=sigmoid), build)
    assert first.tensor.endswith((".f.sigmoid", ".g.sigmoid"))
    assert first.got == first.expected + 1
    taps = TapRecorder()
    IntegerModel(odd_model).run(_tokens(odd_model), tap=taps)
    z = taps[first.tensor.replace("sigmoid", "z")][(first.token, *first.index)]
    step = odd_model.profile.sigmoid_step_bits
    assert abs(((z - odd_model.profile.z.min) >> step) - middle) <= 1


@both_graphs
@pytest.mark.parametrize("name", ["layer0.mlgru.g", "layer1.mlgru.out", "layer1.glu.gate"])
def test_a_wrong_shift_is_named(odd_model: QuantizedModel, build, name: str) -> None:
    faulty = _with_projection(
        odd_model, name, lambda p: dataclasses.replace(p, shift=p.shift + 1))
    _, first = _check(odd_model, faulty, build)
    assert first.tensor == f"{name}.z"
    assert first.token == 0


@both_graphs
def test_a_wrong_bias_is_named(odd_model: QuantizedModel, build) -> None:
    def change(projection: Projection) -> Projection:
        bias = projection.bias.copy()
        bias[2] ^= 1
        return dataclasses.replace(projection, bias=bias)

    _, first = _check(odd_model, _with_projection(odd_model, "layer1.mlgru.f", change), build)
    assert (first.tensor, first.index[-1]) == ("layer1.mlgru.f.z", 2)
    assert abs(first.got - first.expected) == 1


@both_graphs
def test_one_wrong_embedding_is_named_with_its_token(odd_model: QuantizedModel, build) -> None:
    tokens = _tokens(odd_model)
    late = tokens[1, 17]
    embedding = odd_model.embedding.copy()
    embedding[late, 4] //= 2
    _, first = _check(odd_model, dataclasses.replace(odd_model, embedding=embedding), build)
    where = np.argwhere(late == tokens.T)[0]
    assert first == Difference(
        int(where[0]), None, "embedding.x", (int(where[1]), 4),
        int(odd_model.embedding[late, 4]), int(embedding[late, 4]))


@both_graphs
def test_a_wrong_formula_is_named(odd_model: QuantizedModel, build) -> None:
    proto = build(odd_model)
    function = next(each for each in proto.functions if each.name == "MlgruState")
    subtract = next(node for node in function.node if node.op_type == "Sub")
    subtract.input[0], subtract.input[1] = subtract.input[1], subtract.input[0]
    onnx.checker.check_model(proto, full_check=True)
    report = check_exact(odd_model, proto, _tokens(odd_model))
    assert report.same_model
    assert report.first is not None
    assert report.first.tensor == "layer0.mlgru.h"
    assert report.first.token == 0
