"""A model of 370 million parameters on the compiled operator: load, memory, decode, prefill.

    OPENBLAS_NUM_THREADS=1 python benchmarks/real_size.py

Makes a random model (d 1,024, 24 layers, 32,000 tokens, profile S16) or takes that of ``--model``,
exports it by the command, which compares 64 tokens with the reference, compares the operator with
it, loads the file in a separate process, and times a token and a prompt of 512. For comparison it
times a token of onnxruntime's own operators, in this form and ``fast``, reading as many bytes as
the weights have, by a BLAS dot product of an array in huge pages, and the bare products of a token
in llama.cpp, if installed (see edge.py). Needs 5 GiB and some minutes; ``STERNA_KERNEL`` names
another kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import onnxruntime
from edge_peers import Ggml, GgmlProducts, find_ggml
from timing import Samples, describe_machine, measure

from sterna.cli.terminal.tables import Table
from sterna.export.forms.forms import build
from sterna.export.graph.file import Source
from sterna.export.native import memory
from sterna.export.native.ops import build_ops, kernel_name
from sterna.export.runtime.session import Session
from sterna.model.config import ModelConfig
from sterna.model.profile import S16
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.synthetic import random_model

PROMPT = 512
_LOAD = """
import json, sys, time
from pathlib import Path
from sterna.export.forms.forms import build
from sterna.export.graph.file import OnnxFile
from sterna.export.runtime.session import Session
from sterna.model.quantized import load_model

def resident():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Rss:")) * 1024

path, library = sys.argv[1], Path(sys.argv[2])
Session(build(load_model("micro")), ops=library)        # libraries and their caches
began = time.process_time()
file = OnnxFile.read(path)
file.info                                               # records and tokenizer
before = resident()
session = Session(file, ops=library)
seconds = time.process_time() - began
session.step([1], session.start(1))
print(json.dumps({"seconds": seconds, "bytes": resident() - before}))
"""


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a quantised model of 370M")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--ggml", type=Path, default=find_ggml(), help="as of edge.py")
    arguments = parser.parse_args()
    library = build_ops()
    with tempfile.TemporaryDirectory() as name:
        graph = Path(name) / "model.onnx"
        path = arguments.model or Path(name) / "model.safetensors"
        if arguments.model is None:
            config = ModelConfig(d=1024, layers=24, dff=2816, vocab=32000)
            random_model(config, S16).save(path)
        exported, peak = _export(path, graph)
        model = load_model(path)
        tokens = np.random.default_rng(1).integers(0, model.vocab, (4, 16))
        pairs = zip(Session(graph, ops=library).run(tokens), IntegerModel(model).run(tokens),
                    strict=True)
        wrong = sum(int((one != other).sum()) for one, other in pairs)
        loaded = json.loads(subprocess.run(
            [sys.executable, "-c", _LOAD, graph, library], check=True, capture_output=True,
            text=True).stdout)
        size = graph.stat().st_size
        rows = [("operator: mismatches of 64 tokens, batch 4", str(wrong)),
                ("export, check included: CPU seconds", f"{exported:.0f}"),
                ("export: peak MiB", f"{peak / 2**20:,.0f}"),
                ("load, self-test included: CPU seconds", f"{loaded['seconds']:.2f}"),
                ("resident over the file, tokenizer aside", f"{loaded['bytes'] / size:.3f}")]
        ggml = None if arguments.ggml is None else Ggml(arguments.ggml)
        rows += _speeds(graph, library, model, ggml, arguments.rounds)
    machine = ", ".join(f"{key} {value}" for key, value in describe_machine().items())
    Table(f"{size / 1e6:.0f} MB file, kernel {kernel_name(library)}; {machine}",
          ("what", "measured"), rows).print()


def _export(model: Path, graph: Path) -> tuple[float, int]:
    """CPU seconds and peak memory of the command."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sterna.cli", "export", model, "-o", graph, "--check", "64",
         "--quiet"])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit("the export failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def _session(graph: Source, library: Path | None, threads: int) -> Session:
    """A session with threads that sleep between calls, so as not to disturb others."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return Session(graph, ops=library, options=options)


def _speeds(
    graph: Path, library: Path, model: QuantizedModel, ggml: Ggml | None, rounds: int,
) -> list[tuple[str, str]]:
    matrices = [each.weight for each in model.projections.values()]
    weights = sum(each.size for each in matrices) // 4
    sessions = {str(threads): _session(graph, library, threads) for threads in (1, 2)}
    with patch.object(memory, "LEAST_BYTES", sys.maxsize):
        sessions |= {f"{threads} mapped": _session(graph, library, threads) for threads in (1, 2)}
    state, token = sessions["1"].start(1), np.array([1])
    others = {"exact": _session(graph, None, 1), "fast": _session(build(model, "fast"), None, 1)}
    text = np.arange(PROMPT)[None] % model.vocab
    numbers = memory.huge_pages(weights // 8 * 8).view(np.float64)
    numbers[:] = 1
    halves = np.array_split(numbers, 2)
    with ThreadPoolExecutor(2) as pool:
        calls = {"read": partial(np.dot, numbers, numbers),
                 "read 2": lambda: list(pool.map(np.dot, halves, halves))}
        if ggml is not None:
            for threads in (1, 2):
                calls[f"ggml {threads}"] = products = GgmlProducts(
                    ggml, "TQ2_0", matrices, threads)
                for x in products.x:
                    x[:] = np.random.default_rng(2).standard_normal(x.size)
        calls |= {f"{name} {threads}": partial(call, session) for threads, session in
                  sessions.items() for name, call in (
                      ("step", lambda own: own.step(token, state)),
                      ("prompt", lambda own: own.prefill(text)))}
        calls |= {f"step {form}": partial(other.step, token, other.start(1))
                  for form, other in others.items()}
        steps = measure({name: call for name, call in calls.items() if "prompt" not in name},
                        rounds=rounds, clock=time.perf_counter)
        prompts = measure({name: calls[name] for name in ("step 1", "prompt 1", "prompt 2")},
                          rounds=max(rounds // 8, 3), clock=time.perf_counter)

    def ratio(taken: Samples, base: str, name: str, times: int = 1) -> str:
        """Speed of a call relative to another: of the fastest, and the median of all rounds."""
        rounds = zip(taken[base], taken[name], strict=True)
        best = min(taken[base]) / min(taken[name])
        return f"{times * best:.2f} ({times * statistics.median(a / b for a, b in rounds):.2f})"

    decode, read, prompt = min(steps["step 1"]), min(steps["read"]), min(prompts["prompt 1"])
    return [
        ("decode: ms a token", f"{1e3 * decode:.2f}"),
        ("decode: GB/s of weights", f"{weights / decode / 1e9:.1f}"),
        ("read: GB/s", f"{weights / read / 1e9:.1f}"),
        ("decode over read, fastest (median)", ratio(steps, "read", "step 1")),
        ("decode over onnxruntime's operators", ratio(steps, "step exact", "step 1")),
        ("decode over the form fast", ratio(steps, "step fast", "step 1")),
        *((f"decode over the products of llama.cpp's TQ2_0, {threads} thread(s)",
           ratio(steps, f"ggml {threads}", f"step {threads}"))
          for threads in (1, 2) if ggml is not None),
        *((f"decode over that from the file's pages of 4 KiB, {threads} thread(s)",
           ratio(steps, f"step {threads} mapped", f"step {threads}")) for threads in (1, 2)),
        ("two threads over one: decode", ratio(steps, "step 1", "step 2")),
        ("two threads over one: read", ratio(steps, "read", "read 2")),
        ("two threads over one: prefill", ratio(prompts, "prompt 1", "prompt 2")),
        ("prefill: ms a token", f"{1e3 * prompt / PROMPT:.2f}"),
        ("prefill over decode", ratio(prompts, "step 1", "prompt 1", PROMPT)),
    ]


if __name__ == "__main__":
    main()
