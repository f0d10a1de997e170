"""What a bench has to do, and what came out: the two files between Sterna and a simulator.

The bench runs inside the simulator's process and knows no arithmetic. It gets words to
feed to one stream, hands back the words another stream gave, and everything is compared
outside, where the names of tensors are known.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from sterna.model.files import write_atomically

__all__ = ["Job", "Phase", "PhaseResult", "read_results", "write_results"]


@dataclass(frozen=True, slots=True)
class Phase:
    """A run of beats.

    Parameters
    ----------
    name
        What it tests, for messages.
    inputs
        Words for the input stream, in order.
    outputs
        Words to expect from the output stream.
    reset
        Whether the unit is reset first.
    stalls
        Whether both ends pause at random; if not, both are always ready.
    """

    name: str
    inputs: list[int]
    outputs: int
    reset: bool = False
    stalls: bool = True


@dataclass(frozen=True, slots=True)
class Job:
    """A unit's streams and the phases to run, one after the other.

    A phase that expects fewer outputs than its inputs would give is cut short: the next
    one must then begin with a reset, or with whatever else makes the unit forget.
    """

    input: str
    output: str
    seed: int
    phases: list[Phase]

    def write(self, path: Path) -> None:
        """Write the job as JSON; wide words as hexadecimal text."""
        data = asdict(self)
        for phase in data["phases"]:
            phase["inputs"] = [f"{word:x}" for word in phase["inputs"]]
        write_atomically(path, json.dumps(data))

    @classmethod
    def read(cls, path: Path) -> Job:
        """Read what :meth:`write` wrote."""
        data = json.loads(path.read_text())
        for phase in data["phases"]:
            phase["inputs"] = [int(word, 16) for word in phase["inputs"]]
        return cls(data["input"], data["output"], data["seed"],
                   [Phase(**phase) for phase in data["phases"]])


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """Words of the output stream, and clock cycles from the first beat offered to the last
    one taken."""

    outputs: list[int]
    cycles: int


def write_results(path: Path, results: list[PhaseResult]) -> None:
    """Write what a bench saw."""
    write_atomically(path, json.dumps(
        [{"outputs": [f"{word:x}" for word in result.outputs], "cycles": result.cycles}
         for result in results]))


def read_results(path: Path) -> list[PhaseResult]:
    """Read what :func:`write_results` wrote."""
    return [PhaseResult([int(word, 16) for word in result["outputs"]], result["cycles"])
            for result in json.loads(path.read_text())]
