"""Time softmax attention, linear attention and the MLGRU on sequences of growing length.

    OMP_NUM_THREADS=1 python benchmarks/attention.py -o docs/mixers

The usual experiment on linear attention: one layer, random inputs, and the speedup over softmax
attention, which depends on its implementation: two are timed. All contestants of a length are
called in turn, so that noise hits all alike; ratios are of medians.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.cli.reports.vector import PALETTE, drawing, finish, svg_file, svg_of
from sterna.model.torch.mixers.attention import Attention
from sterna.model.torch.mixers.linear import (
    LinearAttention,
    causal_by_sums,
    elu_features,
    mixed_by_sums,
)
from sterna.model.torch.mixers.recurrent import MLGRU
from sterna.model.torch.network.projection import MixerInit
from sterna.model.torch.network.recurrence import mlgru_scan
from sterna.model.torch.study.plan import describe_machine

D, HEADS = 64, 4
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 6000)
LEAST_RUNS = 3
MEMORY = 10e9
"""Limit in bytes of the matrices of materialised attention: longer sequences have a smaller batch.
"""


def materialised(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention directly from its formula: ``[batch, heads, time, width]`` all."""
    return (q * q.shape[-1] ** -0.5 @ k.transpose(-1, -2)).softmax(-1) @ v


class Materialised(Attention):
    def scores(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return materialised(q, k, v)


def linear_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    sums = q.new_zeros(*q.shape[:2], q.shape[-1], q.shape[-1])
    return causal_by_sums(elu_features(q), elu_features(k), v, sums, sums[..., 0])[0]


def mlgru(f: Tensor, c: Tensor, g: Tensor) -> Tensor:
    return g.sigmoid() * mlgru_scan(f.sigmoid(), F.silu(c), f.new_zeros(f.shape[1:]))


CORES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "softmax": materialised,
    "softmax fused": F.scaled_dot_product_attention,
    "softmax causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "linear": lambda q, k, v: mixed_by_sums(elu_features(q), elu_features(k), v),
    "linear causal": linear_causal,
    "mlgru": mlgru,
}
"""The mixing between the projections. ``softmax`` writes its matrix to memory, ``softmax fused`` is
torch's ``scaled_dot_product_attention``, the features of ``linear`` are elu + 1; ``mlgru`` (gates,
recurrence and output gate) is causal."""
MIXERS = {
    "softmax": lambda init: Materialised(init, heads=HEADS, causal=False, rope=False),
    "softmax fused": lambda init: Attention(init, heads=HEADS, causal=False, rope=False),
    "softmax causal": lambda init: Attention(init, heads=HEADS, rope=False),
    "linear": lambda init: LinearAttention(init, heads=HEADS, causal=False, rope=False),
    "linear causal": lambda init: LinearAttention(init, heads=HEADS, rope=False),
    "mlgru": MLGRU,
}
"""The same with projections, without positions, which not all support."""


def contestant(
    name: str, part: str, length: int, batch: int, backward: bool,
) -> Callable[[], object]:
    """A call that mixes random tokens once, and with ``backward`` also computes all gradients."""
    generator = torch.Generator().manual_seed(0)
    if part == "core":
        shape = ((length, batch, D) if name == "mlgru" else (batch, HEADS, length, D // HEADS))
        wanted = [torch.randn(shape, generator=generator).requires_grad_(backward)
                  for _ in range(3)]

        def mixed() -> Tensor:
            return CORES[name](*wanted)
    else:
        mixer = MIXERS[name](MixerInit(D, ternary=part == "ternary", generator=generator))
        x = torch.randn((length, batch, D), generator=generator).requires_grad_(backward)
        wanted = [x, *mixer.parameters()]

        def mixed() -> Tensor:
            return mixer(x, mixer.initial_state(x))[0]

    if not backward:
        return torch.no_grad()(mixed)

    def both() -> object:
        y = mixed()
        return torch.autograd.grad(y, wanted, torch.ones_like(y))
    return both


def timed(
    calls: dict[str, Callable[[], object]], runs: int, seconds: float,
) -> dict[str, list[float]]:
    """CPU seconds of every call, one of each in turn, after a warm-up call each; one that has taken
    ``seconds`` and :data:`LEAST_RUNS` runs skips the rest."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for turn in range(runs):
        for name, call in calls.items():
            if turn < LEAST_RUNS or sum(taken[name]) <= seconds:
                start = time.process_time()
                call()
                taken[name].append(time.process_time() - start)
    return taken


def keep_memory() -> None:
    """Let glibc keep freed memory for the next tensors, as torch does on CUDA: remapping takes
    longer than the arithmetic of a large matrix, which would penalise materialised attention."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(-4, 0)      # M_MMAP_MAX
        library.mallopt(-1, -1)     # M_TRIM_THRESHOLD


def plot(cells: list[dict[str, object]]) -> str:
    """Milliseconds per sequence by length, both axes logarithmic, as an SVG file."""
    colours = dict(zip(CORES, (3, 1, 1, 0, 0, 2), strict=True))
    with drawing(9, 5) as figure:
        axes = figure.add_subplot()
        for name in CORES:
            mine = [cell for cell in cells if cell["contestant"] == name]
            axes.loglog([cell["length"] for cell in mine],
                        [cell["median_ms"] / cell["batch"] for cell in mine],
                        "o--" if "causal" in name else "o-", color=PALETTE[colours[name]],
                        label=name, ms=4)
        lengths = sorted({cell["length"] for cell in cells})
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.minorticks_off()
        finish(axes, "tokens of a sequence", "ms for each sequence", "both")
        figure.legend(loc="outside upper left", ncols=3)
        return svg_file(svg_of(figure, "attention", "time to mix a sequence by its length"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("core", "float", "ternary"), default="core",
                        help="what lies between the projections, or the whole mixer")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("-o", "--output", type=Path, help="folder of attention.json and .svg")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    cells: list[dict[str, object]] = []
    for length in options.lengths:
        matrices = (2 + 2 * options.backward) * 4 * HEADS * length ** 2
        batch = max(1, min(options.batch, int(MEMORY // matrices)))
        taken = timed({name: contestant(name, options.part, length, batch, options.backward)
                       for name in CORES}, options.runs, options.seconds)
        medians = {name: 1000 * statistics.median(each) for name, each in taken.items()}
        print(f"N {length:,}, batch {batch}: median ms, times as fast as softmax, fused, linear, "
              "linear causal")
        for name, each in taken.items():
            ratios = [medians[base] / medians[name] for base in (
                "softmax", "softmax fused", "linear", "linear causal")]
            print(f"  {name:15s} {medians[name]:10.3f}" + "".join(f"{x:9.3g}" for x in ratios))
            cells.append({"contestant": name, "length": length, "batch": batch, "runs": len(each),
                          "median_ms": float(f"{medians[name]:.4g}")})
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        settings = {name: value for name, value in vars(options).items() if name != "output"}
        (options.output / "attention.json").write_text(json.dumps({
            "machine": describe_machine(), "settings": settings, "cells": cells}, indent=1) + "\n")
        (options.output / "attention.svg").write_text(plot(cells))


if __name__ == "__main__":
    main()
