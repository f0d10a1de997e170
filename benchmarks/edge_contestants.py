"""Contestants of ``benchmarks/edge.py``: every ONNX form, the operator library, PyTorch.

Run as a program it loads one file and prints its costs as JSON: a separate process shows the memory
of a single contestant.

    python benchmarks/edge_contestants.py NAME LENGTH FILE OPS CONFIG PROFILE
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime
from edge_float32 import build_dense

from sterna.export.forms.forms import Form, build
from sterna.export.graph.file import OnnxFile
from sterna.export.runtime.runtime import open_session
from sterna.export.runtime.session import Session
from sterna.model.config import ModelConfig
from sterna.model.profile import NumericProfile
from sterna.model.quantized import QuantizedModel

__all__ = ["BASE", "NAMES", "OPS", "TORCH", "example_inputs", "missing", "open_call", "probe",
           "write_file"]

BASE = "float32"
OPS = "exact + ops"
TORCH = "torch float32"
NAMES = (BASE, Form.EXACT.value, OPS, Form.FAST.value, TORCH)
PREFILL_TOKENS = 128
Call = Callable[[], object]


def missing(name: str) -> str | None:
    """The reason why a contestant cannot run here, or None; the library is not checked here."""
    return "torch is not installed" if name == TORCH and find_spec("torch") is None else None


def write_file(name: str, model: QuantizedModel, folder: Path) -> Path:
    """Write the file of a contestant, unless it exists; ``exact + ops`` shares that of exact."""
    if name == TORCH:
        from edge_torch import write_dense
        path = folder / "dense.pt"
        return path if path.exists() else write_dense(model, path)
    form = Form.EXACT.value if name == OPS else name
    path = folder / f"{form}.onnx"
    if not path.exists():
        proto = build_dense(model) if form == BASE else build(model, form)
        path.write_bytes(proto.SerializeToString(deterministic=True))
    return path


def example_inputs(config: ModelConfig, length: int, dtype: type) -> dict[str, np.ndarray]:
    """Inputs of a graph: one sequence of ``length`` tokens, from the zero state of ``dtype``."""
    return {"tokens": np.random.default_rng(1).integers(0, config.vocab, size=(1, length)),
            "state": np.zeros((config.layers, 1, config.d), dtype=dtype),
            "logits_from": np.array([0])}


def open_call(
    name: str, length: int, path: Path, ops: Path | None, config: ModelConfig,
    profile: NumericProfile,
) -> Call:
    """Load a contestant on one thread; return a function that runs ``length`` tokens once.

    A single token continues from the state of the previous one.
    """
    if name == TORCH:
        return _open_torch(length, path, config, profile)
    if name == OPS:
        session = open_session(OnnxFile.read(path), ops=ops)
    else:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"])
    floats = {each.name: each.type for each in session.get_inputs()}["state"] == "tensor(float)"
    feed = example_inputs(config, length, np.float32 if floats else np.int32)

    def call() -> object:
        logits, state = session.run(None, feed)
        if length == 1:
            feed["state"] = state
        return logits

    return call


def _open_torch(
    length: int, path: Path, config: ModelConfig, profile: NumericProfile,
) -> Call:
    import torch
    from edge_torch import open_dense
    torch.set_num_threads(1)
    dense = open_dense(path, config, profile)
    inputs = example_inputs(config, length, np.float32)
    state = torch.from_numpy(inputs.pop("state"))
    tokens = torch.from_numpy(np.ascontiguousarray(inputs["tokens"].T))

    def call() -> object:
        nonlocal state
        logits, after = dense(tokens, state)
        if length == 1:
            state = after
        return logits

    return call


# A separate process ------------------------------------------------------------------


def probe(
    name: str, length: int, path: Path, ops: Path | None, model: QuantizedModel,
) -> dict[str, float]:
    """Load the file of a contestant, made from ``model``, in a separate process.

    Returns ``load_ms``, from the file to a callable; ``loaded_mib`` and ``peak_mib``, growth of the
    resident memory after three calls, and at its peak; for a form of Sterna's ``session_ms``, the
    time of ``sterna.export.Session``, which tests what it loads.
    """
    command = [sys.executable, __file__, name, str(length), str(path), str(ops or ""),
               json.dumps(model.config.to_json()), json.dumps(asdict(model.profile))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise RuntimeError(lines[-1])
    return dict(json.loads(done.stdout))


def _resident_mib() -> tuple[float, float]:
    """Current and peak resident memory; the peak twice if not on Linux."""
    try:
        status = dict(line.split(":", 1) for line in
                      Path("/proc/self/status").read_text().splitlines())
        now, peak = (int(status[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))
    except (OSError, KeyError):
        unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
        now = peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    return now, peak


def _probe_here(arguments: list[str]) -> dict[str, float]:
    name, length, path, ops, config, profile = arguments
    shape = ModelConfig(**json.loads(config))
    formats = NumericProfile.from_json(json.loads(profile))
    if name == TORCH:
        import edge_torch  # noqa: F401  (its import is no part of what is measured)
    with suppress(OSError):  # Linux: reset the peak.
        Path("/proc/self/clear_refs").write_text("5")
    before, _ = _resident_mib()
    start = time.perf_counter()
    call = open_call(
        name, int(length), Path(path), Path(ops) if ops else None, shape, formats)
    load = time.perf_counter() - start
    for _ in range(3):
        call()
    loaded, peak = _resident_mib()
    found = {"load_ms": 1e3 * load, "loaded_mib": loaded - before, "peak_mib": peak - before}
    if name not in (BASE, TORCH):
        del call
        start = time.perf_counter()
        Session(path, ops=ops if name == OPS else None)
        found["session_ms"] = 1e3 * (time.perf_counter() - start)
    return found


if __name__ == "__main__":
    print(json.dumps(_probe_here(sys.argv[1:])))
