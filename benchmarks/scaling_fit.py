"""The loss by weights and tokens: two published laws, of N ternary weights and D tokens,

    sum of both   L = E + A / N^a + B / D^b               (Hoffmann et al. 2022, equation 2)
    joint         L = E + ((C / N)^(a/b) + B / D)^b       (Kaplan et al. 2020, equation 1.5, with E)

Each is fitted to a grid of runs by least squares. The one that fits them better is asked for three
that were not fitted: longer, wider than all of them, and both. The goal is 0.02 bits per byte.
Learning rates are in inverse proportion to the width (:meth:`TrainRecipe.carried_over`), so that
every run has one that suits it. The text is the manual with the standard library's docstrings,
which the largest run reads less than twice.

About 18 minutes on two idle cores; if it is stopped, it goes on where it was.

    python benchmarks/scaling_fit.py [--jobs 2] [-o runs/scaling_fit.json]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.optimize import least_squares
from train_cells import Cell, arguments, run_cells

from sterna.model.training.recipe import TrainRecipe

_LEAST_EXPONENT, _LARGEST_EXPONENT = 0.02, 3.0
_STARTS = (0.1, 0.3, 1.0)       # of the exponents: least squares may end in a local minimum
_GOAL = 0.02
_LR_WIDTH = 128                 # what the default learning rate is for


@dataclass(frozen=True)
class Law:
    """A form of the law. ``loss`` takes (E, log of A or C, a, log of B, b), weights and tokens, in
    units of the smallest run; ``text`` the same parameters, in units of 1."""

    name: str
    loss: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    text: Callable[[np.ndarray, float, float], str]


def _sum(p: np.ndarray, n: np.ndarray, d: np.ndarray) -> np.ndarray:
    return p[0] + np.exp(p[1]) * n**-p[2] + np.exp(p[3]) * d**-p[4]


def _joint(p: np.ndarray, n: np.ndarray, d: np.ndarray) -> np.ndarray:
    return p[0] + (np.exp(p[1] * p[2] / p[4]) * n**(-p[2] / p[4]) + np.exp(p[3]) / d)**p[4]


LAWS = (
    Law("sum of both", _sum, lambda p, n, d: (
        f"L = {p[0]:.4f} + {np.exp(p[1]) * n**p[2]:.4g} / N^{p[2]:.2f} + "
        f"{np.exp(p[3]) * d**p[4]:.4g} / D^{p[4]:.2f}")),
    Law("joint", _joint, lambda p, n, d: (
        f"L = {p[0]:.4f} + (({np.exp(p[1]) * n:.4g} / N)^({p[2]:.3f}/{p[4]:.3f}) + "
        f"{np.exp(p[3]) * d:.4g} / D)^{p[4]:.3f}")),
)


def fit(law: Law, n: np.ndarray, d: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Parameters of least squares, with E at least 0; weights and tokens in units of the smallest
    run."""
    lower = [0.0, -20.0, _LEAST_EXPONENT, -20.0, _LEAST_EXPONENT]
    upper = [float(losses.min()), 20.0, _LARGEST_EXPONENT, 20.0, _LARGEST_EXPONENT]
    tried = (least_squares(lambda p: law.loss(p, n, d) - losses,
                           [losses.min() / 2, 0.0, a, 0.0, b], bounds=(lower, upper))
             for a, b in product(_STARTS, repeat=2))
    return min(tried, key=lambda found: found.cost).x


def report(rows: Sequence[tuple[int, int, float]], fitted: int) -> None:
    """Fit the first ``fitted`` rows of weights, tokens and loss, and ask for the others."""
    weights, tokens, losses = (np.array(each, dtype=float) for each in zip(*rows, strict=True))
    smallest = float(weights.min()), float(tokens.min())
    n, d = weights / smallest[0], tokens / smallest[1]
    said, spread = {}, {}
    for law in LAWS:
        p = fit(law, n[:fitted], d[:fitted], losses[:fitted])
        said[law.name] = law.loss(p, n, d)
        spread[law.name] = float(np.sqrt(np.mean((said[law.name] - losses)[:fitted]**2)))
        print(f"\n{law.name}: {law.text(p, *smallest)}\n    root mean square of the fitted runs: "
              f"{spread[law.name]:.4f}", end="")
    best = min(spread, key=lambda name: spread[name])
    print(f"\n\nThe better fit, {best}:\n\n| weights | tokens | measured | "
          + " | ".join(said) + " |\n|---|---|---|" + "---|" * len(said))
    for row, (many, read, loss) in enumerate(rows):
        if row == fitted:
            print("| *not fitted* | | |" + " |" * len(said))
        print(f"| {many:,} | {read:,} | {loss:.4f} | " + " | ".join(
            f"{each[row]:.4f} ({each[row] - loss:+.4f})" for each in said.values()) + " |")
    apart = np.abs(said[best] - losses)[fitted:]
    print(f"\nOf what was not fitted the better fit predicts {np.sum(apart <= _GOAL)} of "
          f"{len(apart)} within {_GOAL} bits per byte, the worst within {apart.max():.4f}.")


def main() -> None:
    parser = arguments("The loss by weights and tokens, and what it says of larger runs.",
                       "runs/scaling_fit.json")
    options = parser.parse_args()
    seeds, grid = 2, [*product((32, 48, 64, 96), (250, 500, 1000, 2000))]
    others = ((96, 4000), (160, 2000), (128, 3000))
    cells = {(d, steps, seed): Cell(
        d, 2, steps, seed, docstrings=True, heldout_bytes=32768,
        recipe={"lr": TrainRecipe().carried_over(_LR_WIDTH, d).lr})
        for d, steps in (*grid, *others) for seed in range(seeds)}
    found = run_cells(cells.values(), options.output, options.jobs)
    rows = []
    for d, steps in (*grid, *others):
        each = [found[cells[d, steps, seed].key] for seed in range(seeds)]
        rows.append((each[0]["weights"], each[0]["tokens"],
                     sum(one["heldout_bpb"] for one in each) / seeds))
    report(rows, len(grid))


if __name__ == "__main__":
    main()
