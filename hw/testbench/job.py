"""The job of a bench and its results: the two files between Sterna and a simulator.

The bench runs inside the simulator's process and knows no arithmetic. It feeds words to input
streams and returns the words of output streams; the comparison happens outside, where the names
of tensors are known.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sterna.hw.emit.selftest.ends import Pause
from sterna.model.files import write_atomically

__all__ = [
    "Job", "MonitoredBits", "Pause", "Phase", "PhaseResult", "SimulationError", "read_results",
    "write_results"]


class SimulationError(RuntimeError):
    """The simulation did not complete; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class MonitoredBits:
    """Bits of an output port that a monitor records in every cycle if the lowest is 1."""

    name: str  # of the data
    port: str
    low: int  # the lowest of `width` bits
    width: int


@dataclass(frozen=True, slots=True)
class Phase:
    """A run of words on every stream of a unit."""

    name: str  # what it tests, for messages
    # words for each input stream, in order; none if missing
    inputs: dict[str, list[int]]
    # Number of words to expect from each output stream; none if missing. A phase that expects
    # nothing at all is cut short: its output is ignored, and the next phase must begin by
    # clearing the unit's state.
    outputs: dict[str, int]
    reset: bool = False  # whether the unit is reset first
    # whether drivers and sinks pause at random; if not, words pass in every cycle that the unit
    # allows
    random_pauses: bool = True
    # values of plain input ports, from the start of this phase until another changes them
    levels: dict[str, int] = field(default_factory=dict)
    # pauses of single streams, overriding `random_pauses`
    pauses: dict[str, Pause] = field(default_factory=dict)
    # cycles for which a phase that is cut short continues after its last word was taken
    cut_after: int = 0
    # cycles after any other phase in which no more output is allowed
    drain: int = 40

    @property
    def beats(self) -> int:
        """Words to send on all streams."""
        return sum(map(len, self.inputs.values()))


@dataclass(frozen=True, slots=True)
class Job:
    """A unit's ports and the phases to run, one after the other."""

    # names of the streams, the prefix of their ports: `beats` for `beats__payload`
    inputs: list[str]
    outputs: list[str]
    seed: int  # seed of the random pauses
    phases: list[Phase]  # what to run
    # plain input ports; 0 until a phase sets them
    levels: list[str] = field(default_factory=list)
    patience: int = 2000  # cycles without a transfer on any stream that count as a hang
    monitored: list[MonitoredBits] = field(default_factory=list)  # bits read in every cycle

    def __post_init__(self) -> None:
        for phase in self.phases:
            for kind, known, names in (
                ("input stream", self.inputs, phase.inputs),
                ("output stream", self.outputs, phase.outputs),
                ("stream", [*self.inputs, *self.outputs], phase.pauses),
                ("plain input", self.levels, phase.levels),
            ):
                unknown = [name for name in names if name not in known]
                if unknown:
                    raise ValueError(
                        f"phase {phase.name!r}: there is no {kind} called {unknown[0]!r}, "
                        f"only {known}")

    def write(self, path: Path) -> None:
        """Write the job as JSON; wide words as hexadecimal text."""
        data = asdict(self)
        for phase in data["phases"]:
            phase["inputs"] = _to_hex(phase["inputs"])
        write_atomically(path, json.dumps(data))

    @classmethod
    def read(cls, path: Path) -> Job:
        data = json.loads(path.read_text())
        for phase in data["phases"]:
            phase["inputs"] = _from_hex(phase["inputs"])
            phase["pauses"] = {
                name: Pause(**pause) for name, pause in phase["pauses"].items()}
        data["phases"] = [Phase(**phase) for phase in data["phases"]]
        data["monitored"] = [MonitoredBits(**bits) for bits in data["monitored"]]
        return cls(**data)


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """Results of a phase; its first cycle is 0."""

    outputs: dict[str, list[int]]  # words of each output stream
    cycles: int  # from the first word offered to the last one taken
    # cycle in which each word of `outputs` was taken
    taken_at: dict[str, list[int]] = field(default_factory=dict)
    # values recorded for each of the monitored bits, and their cycles
    seen: dict[str, list[int]] = field(default_factory=dict)
    seen_at: dict[str, list[int]] = field(default_factory=dict)


def write_results(path: Path, results: list[PhaseResult]) -> None:
    data = [asdict(result) for result in results]
    for result in data:
        result["outputs"] = _to_hex(result["outputs"])
        result["seen"] = _to_hex(result["seen"])
    write_atomically(path, json.dumps(data))


def read_results(path: Path) -> list[PhaseResult]:
    return [PhaseResult(_from_hex(result["outputs"]), result["cycles"], result["taken_at"],
                        _from_hex(result["seen"]), result["seen_at"])
            for result in json.loads(path.read_text())]


def _to_hex(words: dict[str, list[int]]) -> dict[str, list[str]]:
    return {name: [f"{word:x}" for word in each] for name, each in words.items()}


def _from_hex(words: dict[str, list[str]]) -> dict[str, list[int]]:
    return {name: [int(word, 16) for word in each] for name, each in words.items()}
