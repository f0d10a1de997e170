"""The traced graphs hold every tensor of the reference, in operators that are exact."""

import numpy as np
import onnx
import pytest

from sterna.export.exact.traced import build_sequence, build_step
from sterna.export.runtime.runtime import OnnxSequence, OnnxStep, step_with_taps
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.taps import TapRecorder


def test_every_tensor_is_the_references(odd_model: QuantizedModel) -> None:
    tokens = np.random.default_rng(5).integers(0, odd_model.config.vocab, (3, 12))
    expected = TapRecorder()
    IntegerModel(odd_model).run(tokens, tap=expected)
    for graph in (OnnxStep(build_step(odd_model), taps=None),
                  OnnxSequence(build_sequence(odd_model), taps=None)):
        got = TapRecorder()
        graph.run(tokens, tap=got)
        assert sorted(got.names()) == sorted(expected.names())
        for name in expected.names():
            assert got[name].dtype == np.int64
            np.testing.assert_array_equal(got[name], expected[name], err_msg=name)


def test_only_the_tensors_asked_for_are_given(odd_model: QuantizedModel) -> None:
    names = ["layer1.glu.up.acc", "layer0.mlgru.g.z", "layer0.mlgru.norm.v", "logits"]
    taps: list[str] = []
    step = step_with_taps(odd_model, names)
    step.step(np.array([1]), step.start(), lambda name, value: taps.append(name))
    assert sorted(taps) == sorted(names)
    with pytest.raises(ValueError, match=r"no tensor called 'layer9\.glu\.p'; its tensors have"):
        step_with_taps(odd_model, ["layer9.glu.p"])


@pytest.mark.parametrize("build", [build_step, build_sequence])
def test_graphs_use_only_exact_operators(odd_model: QuantizedModel, build) -> None:
    proto = build(odd_model)
    onnx.checker.check_model(proto, full_check=True)
    nodes = list(proto.graph.node)
    for function in proto.functions:
        nodes.extend(function.node)
    operators = {node.op_type for node in nodes if not node.domain}
    assert not operators & {
        "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMul", "Gemm",
        "QLinearMatMul", "BitShift"}
    assert "MatMulInteger" in operators
    assert ("Scan" in operators) == (build is build_sequence)
    assert {node.domain for node in nodes} == {"", "sterna"}
