"""What a core is asked in cocotb, phase by phase, and how each phase came out."""

from __future__ import annotations

from dataclasses import dataclass, field

from sterna.hw.core.plan.request import Request
from sterna.hw.testbench.job import Pause
from sterna.hw.testbench.scoreboard import Checks
from sterna.sim.core.timing import CyclesCheck

__all__ = ["CorePhase", "CorePhaseReport"]


@dataclass(frozen=True, slots=True)
class CorePhase:
    """A request, or none, for each sequence, and what the bench does to the core meanwhile.

    Parameters
    ----------
    name
        What it tests, for messages.
    requests
        A request for each sequence; None leaves it alone.
    reset
        Whether the core is reset first; the requests must then start sequences.
    random_pauses
        Whether all ports pause at random.
    pauses
        Pauses of single ports, in place of what ``random_pauses`` says.
    cut_after
        If not None: nothing is compared, and the phase ends so many cycles after the last
        prompt token was taken. The next phase must begin with a reset.
    """

    name: str
    requests: tuple[Request | None, ...]
    reset: bool = False
    random_pauses: bool = False
    pauses: dict[str, Pause] = field(default_factory=dict)
    cut_after: int | None = None


@dataclass(frozen=True, slots=True)
class CorePhaseReport:
    """How a phase came out: the tokens of each sequence, and its clock cycles in all.

    ``checks`` compares every tensor, the logits and the tokens with both oracles; ``timing``
    the cycles with the cycle model where they can be: without pauses, and with two sequences
    after a reset. ``token_cycles`` has the cycles in which the tokens came out.
    """

    name: str
    generated: list[list[int]]
    checks: Checks
    cycles: int
    timing: CyclesCheck
    token_cycles: list[list[int]]
