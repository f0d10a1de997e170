"""Time the sequence graph of a float model with Scan, or sums in chunks, and with LinearAttention.

    python benchmarks/float_graphs.py

Prints the median milliseconds of interleaved calls under onnxruntime, and how many times faster
the graph with LinearAttention is.
"""

from __future__ import annotations

import time
from functools import partial
from statistics import median

import numpy as np
import onnxruntime
from timing import measure

from sterna.cli.terminal.tables import Table
from sterna.model.config import ModelConfig
from sterna.model.torch.onnx_float.writer import flat, float_graph
from sterna.model.torch.stack.language_model import LanguageModel

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
    rows = []
    for mixer in ("mlgru", "hgrn2", "linear"):
        for d in WIDTHS:
            model = LanguageModel(ModelConfig(
                d=d, layers=1, dff=d, vocab=256, mixer=mixer, weights="float"))
            sessions = {name: session(model, name == "fused") for name in ("plain", "fused")}
            for batch, tokens in SHAPES:
                text = np.random.default_rng(0).integers(0, 256, (batch, tokens))
                state = [each.numpy() for each in flat(model.initial_state(batch))]
                calls = {}
                for name, each in sessions.items():
                    names = [value.name for value in each.get_inputs()]
                    feed = dict(zip(names, [text, *state], strict=True))
                    calls[name] = partial(each.run, ["logits"], feed)
                taken = measure(calls, rounds=REPEATS, clock=time.perf_counter)
                plain, fused = (median(each) * 1e3 for each in taken.values())
                rows.append((mixer, d, batch, tokens, f"{plain:.2f}", f"{fused:.2f}",
                             f"{plain / fused:.2f}"))
    Table(None, ("mixer", "d", "batch", "tokens", "plain ms", "LinearAttention ms",
                 "times faster"), rows).print()


if __name__ == "__main__":
    main()
