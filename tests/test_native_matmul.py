"""The compiled product alone, choosing a kernel, and the commands around them."""

import json

import numpy as np
import pytest
from native_graphs import session

from sterna.cli.main import main
from sterna.export.forms.forms import build
from sterna.export.native.ops import KERNEL_VARIABLE, OpsError, TernaryMatrix, kernel_name
from sterna.model.quantized import load_model

SHAPES = [(1, 1), (3, 16), (16, 17), (63, 130), (130, 257), (300, 77), (48, 1030), (64, 256)]


def _random(rows: int, columns: int, tokens: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return (rng.integers(-1, 2, (rows, columns), dtype=np.int8),
            rng.integers(-127, 128, (tokens, columns), dtype=np.int8))


def _product(acts: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return acts.astype(np.int64) @ weight.T.astype(np.int64)


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


def test_what_is_no_matrix_of_trits_or_no_activation_is_refused(native_ops):
    weight, acts = _random(8, 16, 1)
    matrix = TernaryMatrix(native_ops, weight)
    with pytest.raises(ValueError, match=r"activations must be \[tokens, 16\], got \[1, 15\]"):
        matrix.matmul(acts[:, 1:])
    acts[0, 3] = -128
    with pytest.raises(ValueError, match=r"activations must be from -127 to 127, got -128"):
        matrix.matmul(acts)
    with pytest.raises(OpsError, match="a matrix must have 1 to 65536 columns, got 65537"):
        TernaryMatrix(native_ops, np.zeros((1, 65537), np.int8))
    weight[5, 3] = -2
    with pytest.raises(ValueError, match="must be -1, 0 or 1, got -2 in row 5, column 3"):
        TernaryMatrix(native_ops, weight)


def test_an_unknown_kernel_is_refused(native_ops, monkeypatch):
    monkeypatch.setenv(KERNEL_VARIABLE, "sse9")
    expected = r"STERNA_KERNEL must be one of .*portable, got 'sse9'"
    with pytest.raises(OpsError, match=expected):
        kernel_name(native_ops)
    with pytest.raises(Exception, match=expected):
        session(build(load_model("micro")), native_ops)
    # One that is asked for by name has nothing to do with the variable.
    for refused in (lambda: kernel_name(native_ops, "bogus"),
                    lambda: TernaryMatrix(native_ops, np.zeros((8, 16), np.int8), "bogus")):
        with pytest.raises(OpsError, match=r"^kernel must be one of .*portable, got 'bogus'"):
            refused()


def test_a_file_that_is_no_library_is_refused(native_ops, tmp_path):
    path = tmp_path / "ops.so"
    path.write_bytes(b"nothing")
    with pytest.raises(OpsError, match=r"ops\.so: cannot load the operators"):
        kernel_name(path)
    with pytest.raises(OpsError, match=r"ops\.so: onnxruntime \S+ cannot load the operators"):
        session(build(load_model("micro")), path)


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
