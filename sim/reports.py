"""Reports of simulating a unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sterna.hw.testbench.scoreboard import Checks
from sterna.model.quantized.compare import Comparison
from sterna.sim.bench.runner import Simulator

__all__ = ["PhaseReport", "SimulationReport"]


@dataclass(frozen=True, slots=True)
class PhaseReport:
    """Contents and results of one phase."""

    name: str
    beats: int
    cycles: int
    checks: Checks


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """Result of :func:`simulate`: the unit and every phase in order.

    ``agreement`` compares the two oracles with each other; None if the unit has no tensor of a
    text. ``seconds`` is wall time, including compilation.
    """

    unit: str
    simulator: Simulator
    tokens: int
    seed: int
    agreement: Comparison | None
    phases: list[PhaseReport]
    seconds: float

    @property
    def checks(self) -> Checks:
        """All phases together."""
        return sum((phase.checks for phase in self.phases), Checks())

    @property
    def passed(self) -> bool:
        """Whether every value agreed in every required comparison."""
        if self.agreement is None:
            return self.checks.reference.passed
        return self.agreement.passed and self.checks.passed

    @property
    def failure(self) -> str | None:
        """The first difference in words, with its location."""
        if self.agreement and self.agreement.first:
            return f"reference and onnxruntime differ: {self.agreement.first}"
        for phase in self.phases:
            if phase.checks.first:
                return f"phase '{phase.name}': {phase.checks.first}"
        return None

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data, for JSON."""
        return {
            "unit": self.unit, "simulator": self.simulator.value, "tokens": self.tokens,
            "seed": self.seed, "passed": self.passed, "seconds": round(self.seconds, 1),
            "first": self.failure,
            "phases": [
                {"name": phase.name, "beats": phase.beats, "cycles": phase.cycles,
                 **phase.checks.as_dict()}
                for phase in self.phases],
        }
