"""Whether small runs predict a larger one: ``L(N, D) = E + A / N^a + B / D^b`` (arXiv 2203.15556,
equation 2), with N ternary weights and D tokens.

The law is fitted to a grid of runs by least squares, and asked for one that is larger than all of
them in both. The goal is 0.02 bits per byte. The text is the manual with the standard library's
docstrings, which the largest run reads less than twice.

About 10 minutes on two idle cores; if it is stopped, it goes on where it was.

    python benchmarks/scaling_fit.py --jobs 2 -o runs/scaling_fit.json
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from train_cells import Cell, arguments, run_cells

_EXPONENTS = np.arange(0.05, 1.51, 0.01)


def fit(
    weights: Sequence[float], tokens: Sequence[float], losses: Sequence[float],
) -> tuple[float, float, float, float, float]:
    """E, A, a, B, b of least squares with A, B and E at least 0: for every pair of exponents from
    0.05 to 1.5 the rest is linear."""
    n, d, wanted = (np.asarray(each, dtype=float) for each in (weights, tokens, losses))
    best, least = None, np.inf
    for a in _EXPONENTS:
        for b in _EXPONENTS:
            # In units of the smallest run, so that columns are of one size.
            columns = np.stack([np.ones_like(n), (n / n.min())**-a, (d / d.min())**-b], axis=1)
            found, *_ = np.linalg.lstsq(columns, wanted, rcond=None)
            error = float(np.sum((columns @ found - wanted) ** 2))
            if error < least and found.min() >= 0:
                least = error
                best = (float(found[0]), float(found[1] * n.min()**a), float(a),
                        float(found[2] * d.min()**b), float(b))
    if best is None:
        raise ValueError("no law with positive terms fits these runs")
    return best


def predict(law: tuple[float, float, float, float, float], n: float, d: float) -> float:
    """The loss of a run with n weights and d tokens."""
    e, big_a, a, big_b, b = law
    return e + big_a / n**a + big_b / d**b


def main() -> None:
    parser = arguments(__doc__.split(":")[0], "runs/scaling_fit.json")
    options = parser.parse_args()
    widths, lengths, largest, seeds = ((32, 48, 64, 96), (250, 500, 1000, 2000), (128, 3000), 2)
    if options.tiny:
        widths, lengths, largest, seeds = (8, 12, 16), (6, 12, 18), (24, 24), 1
    bytes_ = 512 if options.tiny else 32768
    runs = [*((d, steps) for d in widths for steps in lengths), largest]
    cells = {(d, steps, seed): Cell(d, 2, steps, seed, docstrings=True, heldout_bytes=bytes_)
             for d, steps in runs for seed in range(seeds)}
    found = run_cells(cells.values(), options.output, options.jobs)
    rows = []
    for d, steps in runs:
        each = [found[cells[d, steps, seed].key] for seed in range(seeds)]
        rows.append((each[0]["weights"], each[0]["tokens"],
                     sum(one["heldout_bpb"] for one in each) / seeds))
    law = fit(*zip(*rows[:-1], strict=True))
    print("\nL = {:.4f} + {:.4g} / N^{:.2f} + {:.4g} / D^{:.2f}\n".format(*law))
    print("| weights | tokens | measured | by the law | difference |\n|---|---|---|---|---|")
    for n, tokens, loss in rows:
        said = predict(law, n, tokens)
        print(f"| {n:,} | {tokens:,} | {loss:.4f} | {said:.4f} | {said - loss:+.4f} |")
    apart = predict(law, *rows[-1][:2]) - rows[-1][2]
    print(f"\nThe last run was not fitted: predicted within {abs(apart):.4f} bits per byte "
          f"({'reached' if abs(apart) <= 0.02 else 'missed'}: 0.02).")


if __name__ == "__main__":
    main()
