"""The compiled operators: choosing a kernel, and the product alone."""

import json
from typing import Any

import numpy as np
import onnx
import pytest
from native_graphs import graph, int2, session
from onnx import numpy_helper

from sterna.cli.main import main
from sterna.export.forms.forms import build
from sterna.export.native.ops import KERNEL_VARIABLE, OpsError, TernaryMatrix, kernel_name, with_ops

SHAPES = [(1, 1), (3, 16), (16, 17), (63, 130), (130, 257), (300, 77), (48, 1030), (64, 256)]


def _random(rows: int, columns: int, tokens: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return (rng.integers(-1, 2, (rows, columns), dtype=np.int8),
            rng.integers(-127, 128, (tokens, columns), dtype=np.int8))


def _product(acts: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return acts.astype(np.int64) @ weight.T.astype(np.int64)


def _matmul(weight: np.ndarray, **options: Any) -> onnx.ModelProto:
    """A graph of the operator, for a weight ``[rows, columns]``."""
    return graph("TernaryMatMul", ["q"], ["acc"], [int2("w", weight.T)], **options)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_exact(native_ops, native_kernel, shape):
    for tokens in (1, 2, 3, 4, 5, 7, 16, 65):
        weight, acts = _random(*shape, tokens)
        matrix = TernaryMatrix(native_ops, weight, native_kernel)
        np.testing.assert_array_equal(matrix.matmul(acts), _product(acts, weight))
    if shape == (64, 256):
        assert matrix.packed_bytes == 64 * 256 // 4      # two bits a weight


@pytest.mark.parametrize("value", [-127, 0, 127])
@pytest.mark.parametrize("trit", [-1, 0, 1])
def test_extremes_do_not_overflow(native_ops, native_kernel, value, trit):
    weight = np.full((17, 65536), trit, dtype=np.int8)
    acts = np.full((5, 65536), value, dtype=np.int8)
    got = TernaryMatrix(native_ops, weight, native_kernel).matmul(acts)
    np.testing.assert_array_equal(got, np.full((5, 17), 65536 * value * trit))


def test_the_operator_is_exact_and_takes_any_leading_axes(native_ops, native_kernel, monkeypatch):
    monkeypatch.setenv(KERNEL_VARIABLE, native_kernel)
    weight, acts = _random(77, 130, 6)
    runner = session(_matmul(weight), native_ops)
    for shape in ((6, 130), (2, 3, 130), (1, 6, 1, 130)):
        (got,) = runner.run(None, {"q": acts.reshape(shape).astype(np.float64)})
        assert got.shape == (*shape[:-1], 77)
        np.testing.assert_array_equal(got.reshape(6, 77), _product(acts, weight))


def test_an_older_onnxruntime_gets_the_weights_as_bytes(odd_model):
    kinds = {}
    for version in ("1.31.0", "1.30.0"):
        copy = with_ops(build(odd_model), version)
        weight = next(each for each in copy.graph.initializer if each.name == "head.weight")
        kinds[version] = weight.data_type
        np.testing.assert_array_equal(
            numpy_helper.to_array(weight).astype(np.int8), odd_model.projections["head"].weight.T)
    assert kinds == {"1.31.0": onnx.TensorProto.INT2, "1.30.0": onnx.TensorProto.INT8}


def test_activations_outside_of_eight_bits_are_refused(native_ops):
    weight, _ = _random(8, 16, 1)
    runner = session(_matmul(weight), native_ops)
    with pytest.raises(Exception, match=r"sterna::TernaryMatMul: q must be from -127 to 127"):
        runner.run(None, {"q": np.full((1, 16), -128.0)})
    with pytest.raises(Exception, match=r"q must be \[\.\.\., 16\], got \[1, 15\]"):
        runner.run(None, {"q": np.zeros((1, 15))})
    with pytest.raises(ValueError, match=r"activations must be from -127 to 127, got -128"):
        TernaryMatrix(native_ops, weight).matmul(np.full((1, 16), -128, dtype=np.int8))


def test_a_weight_that_is_no_trit_is_refused(native_ops):
    weight = np.zeros((8, 16), dtype=np.int8)
    weight[5, 3] = -2
    with pytest.raises(Exception, match=r"TernaryMatMul: weight: element \[3, 5\] is not -1,"):
        session(_matmul(weight), native_ops)
    with pytest.raises(ValueError, match="must be -1, 0 or 1, got -2 in row 5, column 3"):
        TernaryMatrix(native_ops, weight)


def test_an_unknown_kernel_is_refused(native_ops, monkeypatch):
    monkeypatch.setenv(KERNEL_VARIABLE, "sse9")
    expected = r"STERNA_KERNEL must be one of .*portable, got 'sse9'"
    with pytest.raises(OpsError, match=expected):
        kernel_name(native_ops)
    weight, _ = _random(8, 16, 1)
    with pytest.raises(Exception, match=expected):
        session(_matmul(weight), native_ops)
    # One that is asked for by name has nothing to do with the variable.
    for refused in (lambda: kernel_name(native_ops, "bogus"),
                    lambda: TernaryMatrix(native_ops, weight, "bogus")):
        with pytest.raises(OpsError, match=r"^kernel must be one of .*portable, got 'bogus'"):
            refused()


def test_a_file_that_is_no_library_is_refused(native_ops, tmp_path):
    path = tmp_path / "ops.so"
    path.write_bytes(b"nothing")
    with pytest.raises(OpsError, match=r"ops\.so: cannot load the operators"):
        kernel_name(path)
    with pytest.raises(OpsError, match=r"ops\.so: onnxruntime \S+ cannot load the operators"):
        session(_matmul(_random(8, 16, 1)[0]), path)


def test_the_commands_print_library_and_kernel_and_take_them(
        native_ops, native_kernel, monkeypatch, capsys):
    monkeypatch.setenv(KERNEL_VARIABLE, native_kernel)
    assert main(["build-ops", "-o", str(native_ops.parent), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "library": str(native_ops), "kernel": native_kernel}
    monkeypatch.setenv(KERNEL_VARIABLE, "sse9")
    assert main(["build-ops", "-o", str(native_ops.parent), "--quiet"]) == 2
    assert "STERNA_KERNEL must be one of" in capsys.readouterr().err
    monkeypatch.delenv(KERNEL_VARIABLE)
    arguments = ["generate", "tiny", "--prompt", "The ", "--tokens", "20"]
    assert main(arguments) == 0
    plain = capsys.readouterr().out
    for option in (["--ops"], ["--ops-library", str(native_ops)]):
        assert main([*arguments, *option]) == 0
        assert capsys.readouterr().out == plain
