"""The Triton kernels beside their naive twins: the largest difference, forward and backward.

    TRITON_INTERPRET=1 python benchmarks/triton_errors.py [--device cpu|cuda] [--json]

On the CPU Triton's interpreter runs them, on a GPU the compiled kernels themselves. Needs the extra
``triton``. An error is the largest difference of a tensor over the largest magnitude of its naive
twin; the worst of all cases, and backward of all gradients, is shown. A tenth of the forget gates
is exactly 0, a tenth exactly 1; the outputs are limited to half of the largest one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from sterna.model.torch.network.bitlinear import naive_bit_linear
from sterna.model.torch.network.quantizers import (
    naive_absmax_quantize,
    ternary_codes_and_scale,
    ternary_scale,
)
from sterna.model.torch.network.recurrence import naive_mlgru

SCANS = ((1, 1, 1), (64, 2, 96), (70, 3, 33))
"""Time, batch, channels."""
VECTORS = ((64, 2, 96), (3, 5, 33), (7, 1))
"""Shapes of what is quantised; the last is the number of columns."""
MATRICES = ((96, 96), (17, 33), (1, 1))
"""Rows and columns of what is made ternary."""
PROJECTIONS = (((64, 2, 96), (96,)), ((3, 5, 33), (17, 40)), ((150, 130), (70, 130, 1)),
               ((1, 1), (1,)))
"""Shapes of the vectors, and rows of the matrices that share them."""


@dataclass(frozen=True, slots=True)
class Errors:
    """What was compared, and the largest relative errors."""

    what: str
    form: str
    shapes: str
    forward: float
    backward: float | None


class Inputs:
    """Random leaves; every other one is not contiguous."""

    def __init__(self, device: str) -> None:
        self._generator = torch.Generator().manual_seed(0)
        self._device = device
        self._made = 0

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """A leaf with gradients."""
        self._made += 1
        values = torch.randn(shape, generator=self._generator) * scale
        if self._made % 2 == 0:
            values = torch.stack([values, values], -1)[..., 0]
        return values.to(self._device).requires_grad_()

    def gates(self, *shape: int) -> Tensor:
        """Forget gates, of which a tenth is 0 and a tenth is 1."""
        gates = torch.rand(shape, generator=self._generator) * 1.2 - 0.1
        return gates.clamp_(0.0, 1.0).to(self._device).requires_grad_()


def relative(ours: Tensor, naive: Tensor) -> float:
    """The largest difference over the largest magnitude."""
    largest = naive.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    return float(((ours - naive).abs().max() / largest).detach())


def compare(
    ours: Callable[[], Tensor], naive: Callable[[], Tensor], leaves: Sequence[Tensor],
) -> tuple[float, float]:
    """The largest errors of the output and of the leaves' gradients."""
    outputs = [form() for form in (ours, naive)]
    weights = torch.linspace(-1.0, 2.0, outputs[0].numel(), device=outputs[0].device)
    gradients = [torch.autograd.grad(out, leaves, weights.view_as(out)) for out in outputs]
    return relative(*outputs), max(map(relative, *gradients))


def _text(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def _worst(
    what: str, form: str, shapes: Sequence[str], found: list[tuple[float, float]],
) -> Errors:
    return Errors(what, form, ", ".join(shapes), *map(max, zip(*found, strict=True)))


def scans(device: str) -> Iterator[Errors]:
    """Both forms of the recurrence."""
    from sterna.model.torch.triton_kernels.recurrence import scan_chunked, scan_one_pass
    for form in (scan_one_pass, scan_chunked):
        inputs, found = Inputs(device), []
        for time, batch, channels in SCANS:
            leaves = (inputs.gates(time, batch, channels),
                      inputs.normal(time, batch, channels, scale=3.0),
                      inputs.normal(batch, channels))
            found.append(compare(
                lambda form=form, leaves=leaves: form(*leaves),
                lambda leaves=leaves: naive_mlgru(*leaves), leaves))
        yield _worst("recurrence", form.__name__.removeprefix("scan_").replace("_", " "),
                     [_text(shape) for shape in SCANS], found)


def quantisers(device: str) -> Iterator[Errors]:
    """Both quantisers."""
    from sterna.model.torch.triton_kernels.absmax import absmax_quantize
    from sterna.model.torch.triton_kernels.ternary import ternary_codes
    inputs, found = Inputs(device), []
    for shape in VECTORS:
        x = inputs.normal(*shape, scale=5.0)
        found.append(compare(
            lambda x=x: absmax_quantize(x), lambda x=x: naive_absmax_quantize(x), [x]))
    yield _worst("norm and quantise", "absmax", [_text(shape) for shape in VECTORS], found)
    wrong = 0
    for rows, columns in MATRICES:
        weight = inputs.normal(rows, columns)
        codes = ternary_codes([weight], [ternary_scale(weight)])
        wrong += int((codes != ternary_codes_and_scale(weight)[0]).sum())
    yield Errors("ternary codes", "codes that differ", ", ".join(map(_text, MATRICES)), wrong, None)


def projections(device: str) -> Iterator[Errors]:
    """BitLinear without and with biases and a limit."""
    from sterna.model.torch.triton_kernels.bitlinear import bit_linear
    for form in ("plain", "bias", "bias and limit"):
        inputs, found = Inputs(device), []
        for shape, rows in PROJECTIONS:
            x = inputs.normal(*shape, scale=5.0)
            weights = [inputs.normal(count, shape[-1], scale=3.0**i)
                       for i, count in enumerate(rows)]
            biases = [] if form == "plain" else [inputs.normal(count) for count in rows]
            free = naive_bit_linear(x, weights, biases or None).abs().max().item()
            limit = free / 2 if "limit" in form else float("inf")
            found.append(compare(
                lambda x=x, weights=weights, biases=biases, limit=limit: bit_linear(
                    x, weights, [ternary_scale(w) for w in weights],
                    torch.cat(biases) if biases else None, limit=limit),
                lambda x=x, weights=weights, biases=biases, limit=limit: naive_bit_linear(
                    x, weights, biases or None, limit), [x, *weights, *biases]))
        yield _worst("BitLinear", form, [f"{_text(shape)} to {' + '.join(map(str, rows))}"
                                         for shape, rows in PROJECTIONS], found)


def errors(device: str = "cpu") -> list[Errors]:
    """Everything, on a device."""
    return [*scans(device), *quantisers(device), *projections(device)]


def missing(device: str) -> str | None:
    """What is missing to run the kernels on a device; None if nothing."""
    if find_spec("triton") is None:
        return "this needs Triton: a torch for CUDA brings it, or the extra triton"
    if device == "cuda":
        return None if torch.cuda.is_available() else (
            "this needs a CUDA device, and torch sees none")
    return None if os.environ.get("TRITON_INTERPRET") == "1" else (
        "on the CPU this needs Triton's interpreter: set TRITON_INTERPRET=1")


def main() -> int:
    """Print the errors, as a table or as JSON; 2 without a device to run on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if reason := missing(options.device):
        print(reason, file=sys.stderr)
        return 2
    found = errors(options.device)
    if options.json:
        print(json.dumps([asdict(each) for each in found]))
        return 0
    for each in found:
        backward = "-" if each.backward is None else f"{each.backward:.1e}"
        print(f"{each.what:18} {each.form:18} {each.forward:8.1e} {backward:>8}  {each.shapes}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
