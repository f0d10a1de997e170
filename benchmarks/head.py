"""The benefit of matrix gains and finer heads: `tiny` by the default recipe, with three seeds.

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
from sterna.model.torch.network.bitlinear import BitLinear, bit_linear
from sterna.model.torch.network.quantizers import absmax_quantize
from sterna.model.torch.stack.language_model import LanguageModel
from sterna.model.torch.training import state

__all__ = ["HEADS", "train_with"]

LEVELS = 121
"""The largest sum of five ternary digits, 243 levels."""


class RowHead(BitLinear):
    """A head with a gain for each row."""

    def scale(self) -> Tensor:
        """The gain as it is used."""
        return self.gain

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.added, bit_linear(x, [self.weight], None), self.scale())


class ShiftHead(RowHead):
    """The same with powers of two: in integers a shift of each row."""

    def scale(self) -> Tensor:
        rounded = torch.exp2(self.gain.detach().clamp_min(2.0 ** -4).log2().round())
        return self.gain + (rounded - self.gain).detach()


class PlanesHead(BitLinear):
    """Weights of 243 levels: five ternary matrices weighted by 1, 3, 9, 27 and 81."""

    def forward(self, x: Tensor) -> Tensor:
        latent = self.latent
        step = latent.detach().abs().amax() / LEVELS
        levels = (latent.detach() / step).round() * step
        return F.linear(absmax_quantize(x), latent + (levels - latent).detach(), self.added)


HEADS: dict[str, type[BitLinear]] = {
    "gain": BitLinear, "rows": RowHead, "shifts": ShiftHead, "planes": PlanesHead}
"""Other projections are unchanged; with ``"plain"`` none has a gain."""


def train_with(head: str) -> None:
    """Make this process train models with one of :data:`HEADS`, or ``"plain"``, with equal initial
    weights."""
    class Model(LanguageModel):
        def __init__(self, *positional: object, **named: object) -> None:
            super().__init__(*positional, **named)
            if head == "plain":
                for module in self.modules():
                    if isinstance(module, BitLinear):
                        module.gain = None
                self.head.bias = None
            else:
                self.head.__class__ = HEADS[head]
                if isinstance(self.head, RowHead):
                    self.head.gain = nn.Parameter(torch.ones(len(self.head.weight)))

    state.LanguageModel = Model


def main() -> None:
    parser = arguments(__doc__.splitlines()[0], "build/head.json")
    parser.add_argument("--heads", nargs="+", choices=["plain", *HEADS], default=["plain", *HEADS])
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
