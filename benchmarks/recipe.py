"""Which parts of the recipe help: equal steps, equal seeds, one change at a time.

Prints a table of held-out bits per byte, float and integers of both profiles, with the mean over
seeds and its difference from the plain recipe's, by seed. About 15 minutes on two idle cores; an
interrupted run is resumed. ``--layers 2 --steps 400`` takes 5 minutes of one core.

    python benchmarks/recipe.py --jobs 2 -o runs/recipe.json
"""

from __future__ import annotations

import statistics

from train_cells import Cell, arguments, run_cells

VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("S16", {}),
    "two-stage": ("S16", {"schedule": "two-stage"}),
    "lr 0.02": ("S16", {"lr": 0.02}),
    "two-stage, lr 0.02": ("S16", {"schedule": "two-stage", "lr": 0.02}),
    "float start 0.1": ("S16", {"float_start": 0.1}),
    "float start 0.3": ("S16", {"float_start": 0.3}),
    "two-stage, lr 0.02, float start 0.2": (
        "S16", {"schedule": "two-stage", "lr": 0.02, "float_start": 0.2}),
    "EMA 0.99": ("S16", {"ema": 0.99}),
    "EMA 0.999": ("S16", {"ema": 0.999}),
    "decay 0.15": ("S16", {"weight_decay": 0.15}),
    "for C12": ("C12", {}),
    "for C12, decay 0.15": ("C12", {"weight_decay": 0.15}),
}


def main() -> None:
    parser = arguments(__doc__.splitlines()[0], "runs/recipe.json")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    d, seeds = 64, 3
    cells = {
        (name, seed): Cell(d, options.layers, options.steps, seed, profile, heldout_bytes=32768,
                           integers=True, recipe=dict(recipe))
        for name, (profile, recipe) in VARIANTS.items() for seed in range(seeds)}
    found = run_cells(cells.values(), options.output, options.jobs)
    print(f"\nd {d}, {options.layers} layers, {options.steps} steps, "
          f"seeds 0 to {seeds - 1}, mean\n")
    print("| | float | against the plain one, by seed | S16 - float | C12 - float |")
    print("|---|---|---|---|---|")
    for name in VARIANTS:
        rows = [found[cells[name, seed].key] for seed in range(seeds)]
        base = [found[cells["plain", seed].key] for seed in range(seeds)]
        if any(row["heldout_bpb"] is None for row in (*rows, *base)):
            print(f"| {name} | not finite | | | |")
            continue
        mean = statistics.fmean(row["heldout_bpb"] for row in rows)
        apart = ", ".join(f"{row['heldout_bpb'] - one['heldout_bpb']:+.4f}"
                          for row, one in zip(rows, base, strict=True))
        lost = [statistics.fmean(row[profile] - row["heldout_bpb"] for row in rows)
                for profile in ("S16", "C12")]
        print(f"| {name} | {mean:.4f} | {apart} | {lost[0]:+.4f} | {lost[1]:+.4f} |")


if __name__ == "__main__":
    main()
