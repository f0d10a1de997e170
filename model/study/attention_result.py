"""What a benchmark of attention was asked for, and what it found."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from sterna.model.checks import check_whole
from sterna.model.network.heads import head_count
from sterna.model.study.attention_contestants import (
    CONTESTANTS,
    FUSED,
    MATERIALISED,
    PARTS,
    contestants_of,
)

__all__ = ["AttentionResult", "Cell", "Settings", "findings", "ratios"]

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 6000)

@dataclass(frozen=True, slots=True)
class Settings:
    """What is timed.

    Parameters
    ----------
    lengths
        Tokens of a sequence, one table row for each.
    batch
        Sequences at a time.
    d
        Channels.
    heads
        Heads of attention; linear attention has as many.
    runs, seconds
        Timed runs of a contestant at a length; after so many seconds of its own there is no
        further one, but three at least.
    part
        One of :data:`PARTS`.
    backward
        Time forward and backward together, not forward alone.
    memory_gb
        Most memory to take, in 10^9 bytes; None for 90 % of what is free.
    fit
        Where a contestant needs more memory than that, halve the batch of all contestants of
        that length until none does. Otherwise it is not run there.
    device
        ``cpu`` or ``cuda``, as torch names it.
    seed
        Of inputs and weights.

    Raises
    ------
    ValueError
        If one of them is out of its range, or there is no such device.
    """

    lengths: tuple[int, ...] = LENGTHS
    batch: int = 32
    d: int = 64
    heads: int = 4
    runs: int = 100
    seconds: float = 5.0
    part: str = "core"
    backward: bool = False
    memory_gb: float | None = None
    fit: bool = False
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.lengths or list(self.lengths) != sorted(set(self.lengths)):
            raise ValueError(f"lengths must rise, got {list(self.lengths)}")
        for length in self.lengths:
            check_whole("a length", length, 1, 1 << 20)
        for name, high in (("batch", 65536), ("d", 65536), ("heads", 1024), ("runs", 100_000)):
            check_whole(name, getattr(self, name), 1, high)
        head_count(self.d, self.heads)
        for name in ("seconds", "memory_gb"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, got {value}")
        if self.part not in PARTS:
            raise ValueError(f"part must be one of {', '.join(PARTS)}, got {self.part!r}")
        _check_device(self.device)


def _check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got {device!r}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device}: torch finds no CUDA device")


@dataclass(frozen=True, slots=True)
class Cell:
    """A contestant at a length.

    Parameters
    ----------
    contestant, length, batch
        What was timed.
    needs_bytes
        Most memory that it takes at once, its inputs included, counted on short sequences.
    may_take_bytes
        Memory that it may take.
    seconds
        Of every run; none if it needs more than it may take.
    """

    contestant: str
    length: int
    batch: int
    needs_bytes: int
    may_take_bytes: int | None
    seconds: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        """Seconds of a run."""
        return statistics.fmean(self.seconds)

    @property
    def deviation(self) -> float:
        """Standard deviation of the seconds; 0 for one run."""
        return statistics.stdev(self.seconds) if len(self.seconds) > 1 else 0.0

    @property
    def median(self) -> float:
        """Seconds of the run in the middle, which others at work on the machine change least."""
        return statistics.median(self.seconds)

    def as_dict(self) -> dict[str, Any]:
        """Figures for JSON, in milliseconds; ``fits`` says whether it was run."""
        found: dict[str, Any] = asdict(self) | {"fits": bool(self.seconds)}
        del found["seconds"]
        if self.seconds:
            found |= {"runs": len(self.seconds)} | {
                f"{name}_ms": float(f"{1000 * value:.5g}") for name, value in (
                    ("mean", self.mean), ("deviation", self.deviation), ("median", self.median),
                    ("least", min(self.seconds)))}
        return found


@dataclass
class AttentionResult:
    """What was measured so far: cells by length, and in each length in the order of
    :data:`CONTESTANTS`."""

    settings: Settings
    machine: dict[str, Any]
    cells: list[Cell] = field(default_factory=list)

    def at(self, length: int) -> dict[str, Cell]:
        """The cells of a length, by contestant."""
        return {cell.contestant: cell for cell in self.cells if cell.length == length}

    def lengths(self) -> list[int]:
        """Those that were measured."""
        return list(dict.fromkeys(cell.length for cell in self.cells))

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "machine": self.machine, "settings": asdict(self.settings),
            "contestants": {name: CONTESTANTS[name] for name in contestants_of(
                self.settings.part)},
            "cells": [cell.as_dict() for cell in self.cells],
            "times_as_fast": [
                {"length": length} | {
                    base: {name: float(f"{value:.4g}") for name, value in found.items()}
                    for base in (MATERIALISED, FUSED)
                    if (found := ratios(self.at(length), base))}
                for length in self.lengths()]}


def ratios(cells: Mapping[str, Cell], base: str) -> dict[str, float]:
    """How many times as fast as ``base`` each contestant is, by medians; none if it did not
    run."""
    if base not in cells or not cells[base].seconds:
        return {}
    return {name: cells[base].median / cell.median for name, cell in cells.items()
            if cell.seconds}


def findings(result: AttentionResult) -> list[str]:
    """What the figures say of linear attention beside softmax, and of the MLGRU beside both, in
    sentences."""
    found = []
    for length in reversed(result.lengths()):
        to_both = [ratios(result.at(length), base) for base in (MATERIALISED, FUSED)]
        if all(to_both):
            found += [
                f"At N {length:,} {name} is {to_both[0][name]:.3g} times as fast as softmax "
                f"attention that writes its matrix, {to_both[1][name]:.3g} times as fast as the "
                f"fused one." for name in ("linear", "linear causal", "mlgru")]
            break
    for rival in ("softmax fused", "linear", "linear causal"):
        speeds = {length: ratio["mlgru"] for length in result.lengths()
                  if "mlgru" in (ratio := ratios(result.at(length), rival))}
        slower = [length for length, speed in speeds.items() if speed <= 1]
        if slower:
            found.append(f"mlgru is not faster than {rival} at N " + ", ".join(
                f"{length:,} ({speeds[length]:.2g} times as fast)" for length in slower) + ".")
        elif speeds:
            found.append(f"mlgru is faster than {rival} at every N, {min(speeds.values()):.3g} to "
                         f"{max(speeds.values()):.3g} times.")
    return found
