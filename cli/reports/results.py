"""What the demo finds: the lines of its table, and all that goes into its report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sterna.hw.flow.report import CellCounts

if TYPE_CHECKING:
    from sterna.export.float.reference import TensorError
    from sterna.hw.core.timing.cycle_report import CycleReport

__all__ = ["PROMPT", "SEED", "TEMPERATURE", "DemoResult", "Stage"]

PROMPT = "The for statement"
"""What the demo's text continues."""

TEMPERATURE, SEED = 0.7, 1
"""How it is drawn."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A line of the demo's table; ``values`` is None where nothing is compared."""

    name: str
    checked: str
    values: int | None
    mismatches: int
    seconds: float
    first: str | None = None


@dataclass(slots=True)
class DemoResult:
    """What the demo found, and what it wrote."""

    model: str
    quick: bool = False
    stages: list[Stage] = field(default_factory=list)
    bits_per_byte: float = 0.0
    cells: dict[str, CellCounts] = field(default_factory=dict)
    prompt: str = PROMPT
    text: str = ""
    cycles: CycleReport | None = None
    errors: list[TensorError] = field(default_factory=list)
    error_tokens: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    report: Path = Path()

    @property
    def passed(self) -> bool:
        """Whether no stage found a mismatch."""
        return all(stage.mismatches == 0 for stage in self.stages)

    def as_dict(self) -> dict[str, Any]:
        """The result as plain data, for JSON."""
        return {
            "model": self.model, "quick": self.quick, "passed": self.passed,
            "stages": [asdict(stage) for stage in self.stages],
            "bits_per_byte": self.bits_per_byte,
            "cells": {unit: asdict(counts) for unit, counts in self.cells.items()},
            "cycles": None if self.cycles is None else self.cycles.as_dict(),
            "rounding_errors": [asdict(error) for error in self.errors],
            "prompt": self.prompt, "text": self.text, "versions": self.versions,
            "report": str(self.report),
        }
