"""Which rule keeps the best learning rate when a model becomes wider.

Every width is trained with learning rates a factor of two apart, for equal steps. The optimum is
the minimum of a parabola through the best rate and its neighbours, over log2 of the rate.
Three rules are read off the same runs: the rate itself, the rate times the width (lr proportional
to 1/width), and the share of codes that a step flips (a target flip rate). A rule transfers if
its constant quantity differs by less than a factor of two between the widths.

A quarter to half an hour on two idle cores; an interrupted run is resumed.

    python benchmarks/lr_transfer.py --jobs 2 -o runs/lr_transfer.json --plot runs/lr_transfer.svg
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from train_cells import Cell, arguments, run_cells


def optimum(losses: Mapping[float, float]) -> tuple[float, bool]:
    """The learning rate of the lowest loss, and whether it lies inside those tried.

    >>> optimum({1.0: 2.0, 2.0: 1.0, 4.0: 2.0})
    (2.0, True)
    """
    rates = sorted(losses)
    at = min(range(len(rates)), key=lambda each: losses[rates[each]])
    if at in (0, len(rates) - 1):
        return rates[at], False
    near = rates[at - 1:at + 2]
    a, b, _ = np.polyfit([math.log2(each) for each in near], [losses[each] for each in near], 2)
    return float(2.0 ** (-b / (2 * a))), True


def between(rates: Sequence[float], values: Sequence[float], rate: float) -> float:
    """The value at a rate, by linear interpolation of logarithms."""
    return float(np.exp(np.interp(
        math.log(rate), np.log(rates), np.log(np.maximum(values, 1e-9)))))


def main() -> None:
    parser = arguments(__doc__.splitlines()[0], "runs/lr_transfer.json")
    parser.add_argument("--plot", type=Path, help="file for a drawing")
    options = parser.parse_args()
    widths, steps, seeds = (64, 128, 256), 600, 2
    rates = [2.0**power for power in range(-9, -3)]
    cells = {(d, lr, seed): Cell(d, 2, steps, seed, heldout_bytes=32768, recipe={"lr": lr})
        for d in widths for lr in rates for seed in range(seeds)}
    found = run_cells(cells.values(), options.output, options.jobs)
    losses: dict[int, dict[float, float]] = {d: {} for d in widths}
    flips: dict[int, dict[float, float]] = {d: {} for d in widths}
    for d in widths:
        for lr in rates:
            rows = [found[cells[d, lr, seed].key] for seed in range(seeds)]
            if all(row["heldout_bpb"] is not None for row in rows):
                losses[d][lr] = statistics.fmean(row["heldout_bpb"] for row in rows)
                flips[d][lr] = statistics.fmean(row["flips"] for row in rows)
    print(f"\n2 layers, {steps} steps, {seeds} seeds\n")
    print("| width |" + "".join(f" {lr:.4g} |" for lr in rates) + " best lr | lr x width | flips |")
    print("|---|" + "---|" * (len(rates) + 3))
    decided = True
    kept: dict[str, list[float]] = {"lr": [], "lr x width": [], "flips": []}
    for d in widths:
        best, inside = optimum(losses[d])
        decided = decided and inside
        share = between([*flips[d]], [*flips[d].values()], best)
        for name, value in zip(kept, (best, best * d, share), strict=True):
            kept[name].append(value)
        row = "".join(f" {losses[d][lr]:.4f} |" if lr in losses[d] else " not finite |"
                      for lr in rates)
        print(f"| {d} |{row} {best:.4g}{'' if inside else ' (at the edge)'} | {best * d:.3g} "
              f"| {share:.3%} |")
    print()
    for name, values in kept.items():
        factor = max(values) / min(values)
        print(f"{name}: differs by a factor of {factor:.2f} over width x "
              f"{max(widths) // min(widths)} "
              f"({'transfers' if factor < 2 else 'does not transfer'})" if decided else
              f"{name}: not decided, as a best rate lies at the edge of those tried")
    if options.plot:
        draw(options.plot, losses)


def draw(path: Path, losses: Mapping[int, Mapping[float, float]]) -> None:
    """Loss against learning rate, a line for each width."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for d, by_rate in losses.items():
        axes.plot([*by_rate], [*by_rate.values()], "o-", label=f"width {d}")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="peak learning rate", ylabel="held-out bits per byte")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    svg = path.suffix == ".svg"
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "sterna"}):
        figure.savefig(path, metadata={"Date": None} if svg else None)


if __name__ == "__main__":
    main()
