"""Time the forms of the MLGRU recurrence, forward and backward.

    python benchmarks/recurrence.py [--threads 1] [--repeats 15] [--grid]

Prints milliseconds (the best of interleaved runs) for every shape: the plain loop, torch's two
forms, from which ``mlgru_scan`` chooses, and the compiled kernel; and the speedup of the chosen
form and the kernel over the loop. ``--grid`` compares only torch's two forms, on the shapes that
determined the choice between them.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable

import torch
from timing import best_milliseconds
from torch import Tensor

from sterna.cli.terminal.tables import Table
from sterna.model.torch.native_cpu.kernels import cpu_kernels
from sterna.model.torch.network.recurrence import (
    mlgru_scan,
    naive_mlgru,
    scan_chunked,
    scan_sequential,
)

Scan = Callable[[Tensor, Tensor, Tensor], Tensor]

SHAPES = (
    (128, 8, 64), (128, 8, 128), (128, 8, 256), (512, 1, 128), (512, 8, 128), (512, 8, 256),
    (2048, 1, 128), (2048, 8, 128), (2048, 4, 256),
)
GRID = tuple((steps, 1, slab) for steps in (32, 64, 128, 256, 512, 2048)
             for slab in (64, 256, 512, 1024, 2048, 4096))


def make_inputs(steps: int, batch: int, channels: int) -> list[Tensor]:
    """Gates, candidates, first state, and the gradient of the states."""
    generator = torch.Generator().manual_seed(0)
    shape = (steps, batch, channels)
    inputs = [torch.rand(shape, generator=generator), torch.randn(shape, generator=generator),
              torch.zeros(batch, channels)]
    return [*(each.requires_grad_() for each in inputs), torch.randn(shape, generator=generator)]


def passes(form: Scan, inputs: list[Tensor]) -> Callable[[], None]:
    """A forward and backward pass of a form."""
    *leaves, grad = inputs

    def run() -> None:
        for leaf in leaves:
            leaf.grad = None
        form(*leaves).backward(grad)

    return run


def chosen_form(inputs: list[Tensor]) -> str:
    """The name of the torch form that ``mlgru_scan`` chooses for these inputs."""
    states = mlgru_scan(*inputs[:3])
    assert states.grad_fn is not None
    return "chunked" if "Chunked" in states.grad_fn.name() else "sequential"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--grid", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    forms: dict[str, Scan] = {"sequential": scan_sequential, "chunked": scan_chunked}
    if not options.grid:
        forms = {"loop": naive_mlgru, **forms}
        kernels = cpu_kernels(print)
        if kernels is not None:
            forms["kernel"] = kernels.mlgru_scan
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {options.threads} "
          f"threads, best of {options.repeats}, ms")
    rows = []
    for shape in GRID if options.grid else SHAPES:
        inputs = make_inputs(*shape)
        best = best_milliseconds({name: passes(form, inputs) for name, form in forms.items()},
                                 options.repeats, options.threads)
        chosen = chosen_form(inputs)
        gains = [f"{best['loop'] / best[name]:.1f}" for name in (chosen, "kernel")
                 if "loop" in best and name in best]
        rows.append((*shape, *(f"{best[name]:.3f}" for name in forms), chosen, *gains))
    gain = ("loop / chosen", "loop / kernel")[:0 if options.grid else 2 if "kernel" in forms else 1]
    Table(None, ("time", "batch", "d", *forms, "chosen", *gain), rows).print(width=100)


if __name__ == "__main__":
    main()
