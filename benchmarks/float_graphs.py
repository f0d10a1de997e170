"""Time the sequence graph of a float model with Scan, or sums in chunks, and with LinearAttention.

    python benchmarks/float_graphs.py

Prints the median milliseconds of interleaved calls under onnxruntime, and how many times faster
the graph with LinearAttention is.
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np
import onnxruntime

from sterna.model.config import ModelConfig
from sterna.model.onnx_float.writer import flat, float_graph
from sterna.model.stack.language_model import LanguageModel

WIDTHS = (64, 128, 512)
REPEATS = 15
SHAPES = ((1, 16), (1, 256), (4, 256), (1, 1024))


def session(model: LanguageModel, use_it: bool) -> onnxruntime.InferenceSession:
    """The sequence graph in onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    proto = float_graph(model, "sequence", use_linear_attention=use_it)
    return onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def main() -> None:
    """Print the table."""
    print(f"{'mixer':8}{'d':>5}{'batch':>7}{'tokens':>8}{'plain ms':>10}{'LinearAttention ms':>20}"
          f"{'times faster':>14}")
    for mixer in ("mlgru", "hgrn2", "linear"):
        for d in WIDTHS:
            model = LanguageModel(ModelConfig(
                d=d, layers=1, dff=d, vocab=256, mixer=mixer, weights="float"))
            sessions = [session(model, use_it) for use_it in (False, True)]
            for batch, tokens in SHAPES:
                text = np.random.default_rng(0).integers(0, 256, (batch, tokens))
                state = [each.numpy() for each in flat(model.initial_state(batch))]
                seconds: list[list[float]] = [[], []]
                for _ in range(REPEATS):
                    for each, spent in zip(sessions, seconds, strict=True):
                        names = [value.name for value in each.get_inputs()]
                        feed = dict(zip(names, [text, *state], strict=True))
                        start = time.perf_counter()
                        each.run(["logits"], feed)
                        spent.append(time.perf_counter() - start)
                plain, fused = (median(each) * 1e3 for each in seconds)
                print(f"{mixer:8}{d:5}{batch:7}{tokens:8}{plain:10.2f}{fused:20.2f}"
                      f"{plain / fused:14.2f}", flush=True)


if __name__ == "__main__":
    main()
