"""What a finer head buys: `tiny` by the default recipe with each of :data:`HEADS`, and three seeds.

    OMP_NUM_THREADS=1 python benchmarks/head.py

Prints the mean of held-out bits per byte and, seed by seed, the difference from the first of
``--heads``. All of them take an hour on two cores.
"""

from __future__ import annotations

import statistics

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from train_cells import Cell, arguments, run_cells

from sterna.cli.terminal.tables import Table
from sterna.model.network.bitlinear import BitLinear, KeepsCodes, RowScaledLinear, bit_linear
from sterna.model.network.quantizers import absmax_quantize
from sterna.model.stack.language_model import LanguageModel
from sterna.model.training import state

__all__ = ["HEADS", "train_with"]

LEVELS = 121
"""The largest sum of five ternary digits, 243 levels."""


class PlainHead(BitLinear):
    """One scale and nothing else."""


class RowHead(RowScaledLinear):
    """Scales of rows that are any numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.added, bit_linear(x, [self.weight], None), self.gain)


class FreeHead(KeepsCodes):
    """A bias, and weights that do not decay, as the optimiser takes it for no projection."""

    def forward(self, x: Tensor) -> Tensor:
        return bit_linear(x, [self.weight], [self.bias])


class OneHead(RowHead):
    """A single scale that is trained by itself, without weight decay."""


class HalfHead(RowScaledLinear):
    """Two scales an octave: a shift of each row, and one of two mantissas."""

    def row_octaves(self) -> Tensor:
        low, high = self.octaves
        return (self.gain.detach().clamp(2.0**low, 2.0**high).log2() * 2).round() / 2


class PlanesHead(PlainHead):
    """Weights of 243 levels, so five ternary matrices of weight 1, 3, 9, 27 and 81."""

    def forward(self, x: Tensor) -> Tensor:
        step = self.weight.detach().abs().amax() / LEVELS
        levels = (self.weight.detach() / step).round() * step
        return F.linear(absmax_quantize(x), self.weight + (levels - self.weight).detach())


HEADS: dict[str, type[BitLinear]] = {
    "ternary": PlainHead, "bias": BitLinear, "one": OneHead, "free": FreeHead, "rows": RowHead,
    "shifts": RowScaledLinear, "halves": HalfHead, "planes": PlanesHead}
EVERYWHERE = {"all rows": RowHead, "all shifts": RowScaledLinear}
"""The same of every projection."""


def train_with(head: str) -> None:
    """Have this process train models with one of :data:`HEADS`; their weights begin alike."""
    kind = (HEADS | EVERYWHERE)[head]

    class Model(LanguageModel):
        def __init__(self, *positional: object, **named: object) -> None:
            super().__init__(*positional, **named)
            for module in self.modules() if head in EVERYWHERE else [self.head]:
                if isinstance(module, BitLinear):
                    module.__class__ = kind
                    if issubclass(kind, PlainHead):
                        module.bias = None
                    gains = 1 if kind is OneHead else len(module.weight)
                    module.gain = (nn.Parameter(torch.ones(gains))
                                   if issubclass(kind, RowScaledLinear) else None)

    state.LanguageModel = Model


def main() -> None:
    parser = arguments(__doc__.splitlines()[0], "build/head.json")
    parser.add_argument("--heads", nargs="+", choices=[*HEADS, *EVERYWHERE], default=list(HEADS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2913)
    options = parser.parse_args()
    defaults = {"weight_decay": 0.3, "float_start": 0.2}
    cells = {(head, seed): Cell(128, 4, options.steps, seed, docstrings=True, heldout_bytes=1 << 20,
                                recipe=defaults, head=head)
             for seed in range(options.seeds) for head in options.heads}
    results = run_cells(cells.values(), options.output, options.jobs)
    figures = {key: results[cell.key]["heldout_bpb"] for key, cell in cells.items()}
    rows = []
    for head in options.heads:
        own = [figures[head, seed] for seed in range(options.seeds)]
        base = [figures[options.heads[0], seed] for seed in range(options.seeds)]
        gains = [f"{value - other:+.4f}" for value, other in zip(own, base, strict=True)]
        rows.append((head, f"{statistics.fmean(own):.4f}", ", ".join(gains)))
    Table(None, ("head", "bits per byte", f"less {options.heads[0]}, by seed"), rows).print()


if __name__ == "__main__":
    main()
