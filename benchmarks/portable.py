"""One exported file under other runtimes: onnx's own evaluator, and C by emx-onnx-cgen.

    pip install emx-onnx-cgen        # beside Sterna, or in a folder that PYTHONPATH names
    python benchmarks/portable.py tiny --tokens 64

Each runs the same tokens as the integer reference; all logits and the last state are compared. To
test other versions of onnxruntime run examples/check_onnx.py with them.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from sterna.export.forms.forms import build, serialize
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.integer import IntegerModel

Step = Callable[[int, np.ndarray], tuple[np.ndarray, np.ndarray]]


def onnx_evaluator(model: QuantizedModel, _: Path) -> Step:
    """onnx's ReferenceEvaluator, on the graph of one token."""
    evaluator = ReferenceEvaluator(build(model, one_token=True))

    def step(token: int, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits, state = evaluator.run(None, {
            "tokens": np.array([[token]]), "state": state})
        return logits, state

    return step


def compiled_to_c(model: QuantizedModel, folder: Path) -> Step:
    """C by emx-onnx-cgen from the graph of one token, compiled by gcc."""
    graph = folder / "graph.onnx"
    graph.write_bytes(serialize(build(model, one_token=True)))
    subprocess.run([sys.executable, "-m", "emx_onnx_cgen", "compile", "--input-dim", "batch=1",
                    "--large-weight-threshold", "0", str(graph), str(folder / "model.c")],
                   check=True, capture_output=True)
    library = folder / "model.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-ffp-contract=off", "-o", str(library),
                    str(folder / "model.c"), "-lm"], check=True)
    function = ctypes.CDLL(str(library)).model
    logits = np.zeros((1, 1, model.vocab), dtype=np.int32)

    def step(token: int, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        after = np.empty_like(state)
        function(*(array.ctypes.data_as(ctypes.c_void_p) for array in (
            np.array([[token]]), np.ascontiguousarray(state), logits, after)))
        return logits.copy(), after

    return step


def main() -> int:
    """Compare and print; 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="name or file of a quantised model")
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    model = load_model(options.model)
    tokens = np.random.default_rng(0).integers(0, model.vocab, options.tokens)
    right, last = IntegerModel(model).run(tokens[None])
    wrong = 0
    for name, make in (("onnx evaluator", onnx_evaluator), ("emx-onnx-cgen", compiled_to_c)):
        try:
            with tempfile.TemporaryDirectory(prefix="sterna-portable-") as folder:
                step = make(model, Path(folder))    # a loaded library may be deleted
        except (OSError, subprocess.CalledProcessError) as error:
            detail = getattr(error, "stderr", None) or b""
            print(f"{name}: left out ({error}) {detail.decode()[-300:]}")
            continue
        state = np.zeros(last.shape, dtype=np.int32)
        started, differ = time.perf_counter(), 0
        for t, token in enumerate(tokens):
            logits, state = step(int(token), state)
            differ += int((logits[0, 0] != right[0, t]).sum())
        differ += int((state != last).sum())
        wrong += differ
        taken = (time.perf_counter() - started) / options.tokens
        print(f"{name}, onnx {onnx.__version__}: {right.size + last.size:,} values, {differ} "
              f"mismatches, {taken * 1e3:.2f} ms a token")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
