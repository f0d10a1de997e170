"""Time the forms of the MLGRU recurrence, forward and backward.

    python benchmarks/recurrence.py [--threads 1] [--repeats 15]

Prints milliseconds (the lower quartile of interleaved repeats) for every shape, marks the
form that ``mlgru_scan`` picks, and gives its speed relative to the plain loop.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from sterna.model.network import recurrence
from sterna.model.network.recurrence import naive_mlgru, scan_chunked, scan_sequential

SHAPES = (
    (128, 8, 64), (128, 8, 128), (128, 8, 256), (256, 4, 128), (512, 1, 256), (512, 8, 256),
    (2048, 4, 256),
)
FORMS: tuple[Callable[[Tensor, Tensor, Tensor], Tensor], ...] = (
    naive_mlgru, scan_sequential, scan_chunked)


def time_once(form: Callable[[Tensor, Tensor, Tensor], Tensor], inputs: list[Tensor]) -> float:
    """Return the milliseconds of one forward and backward pass."""
    for tensor in inputs:
        tensor.grad = None
    start = time.perf_counter()
    form(*inputs).sum().backward()
    return (time.perf_counter() - start) * 1e3


def chosen_form(inputs: list[Tensor]) -> str:
    """Return the name of the form that ``mlgru_scan`` takes for these inputs."""
    states = recurrence.mlgru_scan(*inputs)
    assert states.grad_fn is not None
    return "scan_chunked" if "Chunked" in states.grad_fn.name() else "scan_sequential"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    names = [form.__name__ for form in FORMS]
    print(f"{'time, batch, channels':24}" + "".join(f"{name:>18}" for name in names))
    for steps, batch, channels in SHAPES:
        generator = torch.Generator().manual_seed(0)
        inputs = [torch.rand(steps, batch, channels, generator=generator),
                  torch.randn(steps, batch, channels, generator=generator),
                  torch.zeros(batch, channels)]
        for tensor in inputs:
            tensor.requires_grad_()
        taken: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(options.repeats):
            for form in FORMS:
                taken[form.__name__].append(time_once(form, inputs))
        quartile = {name: sorted(times)[len(times) // 4] for name, times in taken.items()}
        chosen = chosen_form(inputs)
        cells = "".join(
            f"{quartile[name]:16.2f}{' *' if name == chosen else '  '}" for name in names)
        print(f"{steps!s:>6} {batch!s:>6} {channels!s:>8}  {cells}"
              f"  {quartile['naive_mlgru'] / quartile[chosen]:5.1f}x")


if __name__ == "__main__":
    main()
