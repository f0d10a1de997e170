"""Time the Triton kernels on a GPU, beside torch and flash-linear-attention.

    python benchmarks/triton_gpu.py [--repeats 20] [--config 370m]

Three tables of medians, forward and backward together, the contestants in turns within each repeat,
float32 products as in training ("medium"):

- the recurrence: both Triton forms, torch's chunked scan, and ``chunk_hgrn`` of
  flash-linear-attention if it is installed, on the same gates (it takes their logarithm and the
  candidate multiplied already, which is not timed);
- one BitLinear;
- a training step of a model: tokens per second with the kernels and with torch alone.

Needs a CUDA device, or with ``TRITON_INTERPRET=1`` and ``--smallest`` the CPU: that shows that the
script works, and its times say nothing about a GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.model.config import ModelConfig
from sterna.model.torch.network.bitlinear import bit_linear
from sterna.model.torch.network.kernels import by_triton
from sterna.model.torch.network.recurrence import scan_chunked as torch_chunked
from sterna.model.torch.stack.language_model import LanguageModel

Contestants = dict[str, Callable[[], Tensor]]

SCANS = ((2048, 8, 1024), (16384, 8, 1024), (2048, 1, 2048))
"""Time, batch, channels."""
PROJECTIONS = ((16384, 1024, 3072), (16384, 2816, 1024))
"""Vectors, columns, rows."""
MODELS = {
    "370m": (ModelConfig(d=1024, layers=24, dff=2816, vocab=32000), (2048, 8)),
    "small": (ModelConfig(d=512, layers=8, dff=1408, vocab=4096), (1024, 16)),
}
"""Shape of the model, time and batch of a step; 370m has the shape of the published model."""


def synchronise() -> None:
    """Wait for the device."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def medians(contestants: Contestants, leaves: list[Tensor], repeats: int) -> dict[str, float]:
    """Milliseconds of a forward and backward pass of each."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(repeats + 1):
        for name, run in contestants.items():
            for leaf in leaves:
                leaf.grad = None
            synchronise()
            start = time.perf_counter()
            run().sum().backward()
            synchronise()
            if turn:   # the first compiles
                taken[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(times) for name, times in taken.items()}


def show(what: str, found: dict[str, float], base: str, tokens: int) -> None:
    """Print a row for each contestant."""
    for name, milliseconds in found.items():
        print(f"{what:32} {name:22} {milliseconds:10.3f} ms {tokens / milliseconds * 1e3:14,.0f}"
              f" tokens/s {found[base] / milliseconds:7.2f} x {base}", flush=True)


def time_scans(shapes: tuple[tuple[int, int, int], ...], device: str, repeats: int) -> None:
    """The recurrence alone."""
    from sterna.model.torch.triton_kernels.recurrence import scan_chunked, scan_one_pass

    for shape in shapes:
        generator = torch.Generator().manual_seed(0)
        f, c, h = (torch.randn(size, generator=generator).to(device)
                   for size in (shape, shape, shape[1:]))
        leaves = [f.sigmoid_().requires_grad_(), c.requires_grad_(), h.requires_grad_()]
        contestants: Contestants = {
            name: lambda form=form, leaves=leaves: form(*leaves)
            for name, form in (("torch", torch_chunked), ("Triton, one pass", scan_one_pass),
                               ("Triton, chunked", scan_chunked))}
        if find_spec("fla"):
            from fla.ops.hgrn import chunk_hgrn

            x, g = ((1 - f) * c).transpose(0, 1), f.log().transpose(0, 1)
            theirs = [x.detach().contiguous().requires_grad_(),
                      g.detach().contiguous().requires_grad_()]
            leaves += theirs
            contestants["fla, chunk_hgrn"] = lambda theirs=theirs: chunk_hgrn(*theirs)[0]
        show(f"recurrence {shape}", medians(contestants, leaves, repeats), "torch",
             shape[0] * shape[1])


def switched(run: Callable[[], Tensor], wanted: bool) -> Callable[[], Tensor]:
    """The same with or without the kernels."""
    def go() -> Tensor:
        with by_triton.by(lambda *tensors: wanted):
            return run()
    return go


def time_projections(
    shapes: tuple[tuple[int, int, int], ...], device: str, repeats: int,
) -> None:
    """BitLinear alone."""
    for vectors, columns, rows in shapes:
        generator = torch.Generator().manual_seed(0)
        x, weight = (torch.randn(size, generator=generator).to(device).requires_grad_()
                     for size in ((vectors, columns), (rows, columns)))

        def run(x: Tensor = x, weight: Tensor = weight) -> Tensor:
            return bit_linear(x, [weight], None, 8.0)

        contestants = {"torch": switched(run, False), "Triton": switched(run, True)}
        show(f"BitLinear {(vectors, columns, rows)}", medians(contestants, [x, weight], repeats),
             "torch", vectors)


def time_steps(
    config: ModelConfig, size: tuple[int, int], device: str, repeats: int,
) -> None:
    """Forward and backward pass of a whole model, without the optimiser."""
    model = LanguageModel(config).to(device)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, config.vocab, (size[0] + 1, size[1]), generator=generator).to(device)

    def run() -> Tensor:
        logits, _ = model.forward_time_major(tokens[:-1], model.initial_state(size[1]))
        return F.cross_entropy(logits.flatten(0, 1), tokens[1:].flatten())

    contestants = {"torch": switched(run, False), "Triton": switched(run, True)}
    found = medians(contestants, list(model.parameters()), repeats)
    show(f"step, d {config.d}, layers {config.layers}", found, "torch", size[0] * size[1])


def main() -> int:
    """Print the tables; 2 without a device to run on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--config", choices=tuple(MODELS), default="370m")
    parser.add_argument("--smallest", action="store_true", help="a run of the script, not of a GPU")
    options = parser.parse_args()
    if find_spec("triton") is None:
        print("this needs Triton: a torch for CUDA brings it, or the extra triton", file=sys.stderr)
        return 2
    on_cpu = options.smallest and os.environ.get("TRITON_INTERPRET") == "1"
    if not (torch.cuda.is_available() or on_cpu):
        print("this needs a CUDA device, and torch sees none", file=sys.stderr)
        return 2
    device = "cpu" if on_cpu else "cuda"
    import triton

    torch.set_float32_matmul_precision("medium")    # as training does
    where = "Triton's interpreter" if on_cpu else torch.cuda.get_device_name()
    print(f"{where}; torch {torch.__version__}, Triton {triton.__version__}, float32 products: "
          f"{torch.get_float32_matmul_precision()}; medians of {options.repeats}")
    small = options.smallest
    time_scans(((5, 2, 3),) if small else SCANS, device, options.repeats)
    time_projections(((4, 8, 5),) if small else PROJECTIONS, device, options.repeats)
    config, size = MODELS[options.config]
    if small:
        config, size = ModelConfig(d=8, layers=1, dff=12, vocab=16), (3, 2)
    time_steps(config, size, device, options.repeats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
