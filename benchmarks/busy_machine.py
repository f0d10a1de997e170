"""A training step with two threads, on idle cores and beside a busy process, by how long libgomp's
threads spin before they sleep (``GOMP_SPINCOUNT``): the table of docs/training-speed.md.

    python benchmarks/busy_machine.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

STEPS = 60
SPINS = {"libgomp's own": None, "1,000 (sterna's)": "1000", "0 (passive)": "0"}


def measure() -> None:
    """Print the median seconds of a step of the default recipe."""
    from sterna.model.config import ModelConfig
    from sterna.model.corpus import builtin_corpus
    from sterna.model.torch.training.recipe import Execution
    from sterna.model.torch.training.train import train

    class Clock:
        def __init__(self) -> None:
            self.times: list[float] = []

        def update(self, progress: object) -> None:
            self.times.append(time.perf_counter())

        def measured(self, done: int, total: int) -> None: ...

        def message(self, text: str) -> None: ...

        def close(self) -> None: ...

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        train(ModelConfig.named("tiny"), builtin_corpus(), run_dir=Path(folder), steps=STEPS,
              reporter=clock, execution=Execution(threads=2))
    print(median(end - start for start, end in zip(clock.times, clock.times[1:], strict=False)))


def seconds(spin: str | None) -> float:
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    done = subprocess.run(
        [sys.executable, __file__, "--measure"], check=True, capture_output=True, text=True,
        env=environment | ({} if spin is None else {"GOMP_SPINCOUNT": spin}))
    return float(done.stdout)


def main() -> None:
    print(f"{'spins':18}{'idle':>10}{'busy':>10}{'ratio':>8}")
    for name, spin in SPINS.items():
        idle = seconds(spin)
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
            try:
                busy = seconds(spin)
            finally:
                other.kill()
        print(f"{name:18}{idle * 1e3:>7.1f} ms{busy * 1e3:>7.1f} ms{busy / idle:>8.1f}")


if __name__ == "__main__":
    measure() if "--measure" in sys.argv else main()
