"""Costs of a published checkpoint: conversion, and one token of the integer reference.

    python benchmarks/published.py --sizes 370M

Writes checkpoints of random weights in the published layout, converts each in a separate process
on 4 kB of text (about as many tokens as a real tokenizer makes of 16 kB), and prints seconds,
bytes and peak memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from published_checkpoint import SIZES

from sterna.cli.terminal.tables import Table

_STEP = """
import sys
import numpy as np
from sterna.model.quantized import load_model
from sterna.model.quantized.integer import IntegerModel
reference = IntegerModel(load_model(sys.argv[1]))
logits, _ = reference.step(np.array([1]), reference.start())
assert logits.shape == (1, 32000)
"""


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["370M"])
    parser.add_argument("--profile", default="P24")
    arguments = parser.parse_args()
    rows = []
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory() as name:
            folder, model = Path(name) / "hub", Path(name) / "model.safetensors"
            writer = Path(__file__).with_name("published_checkpoint.py")
            _run([str(writer), str(folder), "--size", size])
            converted = _run(["-m", "sterna.cli", "convert", str(folder), "-o", str(model),
                              "--profile", arguments.profile, "--bytes", "4096", "--quiet"])
            step = _run(["-c", _STEP, str(model)])
            stored = sum(each.stat().st_size for each in folder.glob("*.safetensors"))
            rows.append((size, f"{stored / 1e6:,.0f}", f"{model.stat().st_size / 1e6:,.0f}",
                         *converted, *step))
    Table(f"published sizes, random weights, {arguments.profile}",
          ("size", "checkpoint MB", "model MB", "convert s", "peak MiB", "load and one token s",
           "peak MiB"), rows).print()


def _run(arguments: list[str]) -> tuple[str, str]:
    """Run Python; return wall seconds and peak memory."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{arguments[0]} failed")
    return f"{time.perf_counter() - started:.0f}", f"{usage.ru_maxrss / 1024:,.0f}"


if __name__ == "__main__":
    main()
