"""Shared parts of the training benchmarks: named runs in a process pool, with results kept in a
file, so that an interrupted benchmark can be resumed."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from sterna.model.corpus import Corpus, builtin_corpus

__all__ = ["PLAIN", "Cell", "arguments", "run_cells"]


@dataclass(frozen=True)
class Cell:
    """One training run. ``recipe`` has the differences from :data:`PLAIN`; ``integers`` also asks
    for the held-out figures of both profiles' integers; ``head`` is one of those of ``head.py``."""

    d: int
    layers: int
    steps: int
    seed: int = 0
    profile: str = "S16"
    docstrings: bool = False
    heldout_bytes: int = 16384
    integers: bool = False
    head: str = "gain"
    recipe: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A unique description in words."""
        return json.dumps(asdict(self), sort_keys=True)


PLAIN = {"weight_decay": 0.5, "float_start": 0.0}
"""The baseline recipe: the defaults before these measurements chose others."""


@cache
def corpus_of(docstrings: bool) -> Corpus:
    """The built-in text: collecting docstrings imports the standard library, once per process."""
    return builtin_corpus(docstrings=docstrings)


def run_cell(cell: Cell) -> dict[str, Any]:
    """Train; return held-out bits per byte, the median share of codes that a step flips, weights,
    tokens, and CPU seconds."""
    from head import train_with

    from sterna.model.config import ModelConfig
    from sterna.model.profile import PROFILES
    from sterna.model.quantized.evaluate import evaluate
    from sterna.model.torch.training.metrics import read_metrics
    from sterna.model.torch.training.quantize import quantize
    from sterna.model.torch.training.recipe import Execution, Recording
    from sterna.model.torch.training.train import TrainRecipe, train

    train_with(cell.head)       # a process trains several cells in turn
    begin = time.process_time()
    corpus = corpus_of(cell.docstrings)
    config = ModelConfig(cell.d, cell.layers, 3 * cell.d)
    with tempfile.TemporaryDirectory() as folder:
        result = train(config, corpus, run_dir=folder, steps=cell.steps, seed=cell.seed,
                       recipe=TrainRecipe(**{**PLAIN, **cell.recipe}),
                       profile=PROFILES[cell.profile], quiet=True, execution=Execution(threads=1),
                       recording=Recording(heldout_bytes=cell.heldout_bytes, heldout_evaluations=1))
        flips = [each for each in read_metrics(Path(folder) / "metrics.csv")["flips"]
                 if each == each]
    found: dict[str, Any] = {
        "heldout_bpb": result.heldout_bpb, "flips": statistics.median(flips) if flips else None,
        "weights": config.ternary_weights, "tokens": result.tokens}
    if cell.integers:
        for name, profile in PROFILES.items():
            integers = evaluate(quantize(result.model, profile),
                                corpus.heldout[:cell.heldout_bytes])
            found[name] = integers.bits_per_byte
    return {**found, "cpu_seconds": round(time.process_time() - begin, 1)}


def run_cells(cells: Iterable[Cell], path: Path, jobs: int) -> dict[str, dict[str, Any]]:
    """The result of every cell by its key; reuses those in ``path``.

    A cell whose loss stops being finite has no held-out figure.
    """
    known = json.loads(path.read_text()) if path.exists() else {"cells": {}}
    versions = {name: version(name) for name in ("sterna", "torch")}
    known["machine"] = {**versions, "python": platform.python_version(), "jobs": jobs}
    wanted = {cell.key: cell for cell in cells}
    missing = [cell for key, cell in wanted.items() if key not in known["cells"]]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(run_cell, cell): cell for cell in missing}
        for count, future in enumerate(as_completed(running), start=1):
            try:
                found = future.result()
            except FloatingPointError:
                found = {"heldout_bpb": None, "flips": None}
            known["cells"][running[future].key] = found
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".part")
            temporary.write_text(json.dumps(known, indent=1))
            temporary.replace(path)
            print(f"{count} of {len(missing)}: {running[future].key}: {found}", flush=True)
    return {key: known["cells"][key] for key in wanted}


def arguments(description: str, output: str) -> argparse.ArgumentParser:
    """The common options of these benchmarks."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, a thread each")
    parser.add_argument("-o", "--output", type=Path, default=Path(output),
                        help="file of results; those in it are not measured again")
    return parser
