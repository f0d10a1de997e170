"""What a bench has to do, and what came out: the two files between Sterna and a simulator.

The bench runs inside the simulator's process and knows no arithmetic. It gets words to
feed to some streams, hands back the words that others gave, and everything is compared
outside, where the names of tensors are known.
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
    """The simulation did not run to its end; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class MonitoredBits:
    """Bits of an output port that a monitor reads in every cycle, and keeps if the lowest is 1."""

    name: str  # what they show
    port: str
    low: int  # the lowest of `width` bits
    width: int


@dataclass(frozen=True, slots=True)
class Phase:
    """A run of words on every stream of a unit."""

    name: str  # what it tests, for messages
    # words for each input stream, in order; a stream that is not named gets none
    inputs: dict[str, list[int]]
    # How many words to expect from each output stream; none from one that is not named. A
    # phase that expects nothing at all is cut short: what it gives is not looked at, and the
    # next phase must begin with whatever makes the unit forget.
    outputs: dict[str, int]
    reset: bool = False  # whether the unit is reset first
    # whether every driver and every sink pauses at random; if not, words pass in every cycle
    # that the unit allows
    random_pauses: bool = True
    # values of plain input ports, from the start of this phase until another changes them
    levels: dict[str, int] = field(default_factory=dict)
    # pauses of single streams, in place of what `random_pauses` says
    pauses: dict[str, Pause] = field(default_factory=dict)
    # cycles that a phase which is cut short goes on after its last word was taken
    cut_after: int = 0
    # cycles after any other, in which nothing more may come out
    drain: int = 40

    @property
    def beats(self) -> int:
        """Words to send, over all streams."""
        return sum(map(len, self.inputs.values()))


@dataclass(frozen=True, slots=True)
class Job:
    """A unit's ports and the phases to run, one after the other."""

    # names of the streams, as their ports begin: `beats` for `beats__payload`
    inputs: list[str]
    outputs: list[str]
    seed: int  # seed of the random pauses
    phases: list[Phase]  # what to run
    # plain input ports; 0 until a phase says otherwise
    levels: list[str] = field(default_factory=list)
    patience: int = 2000  # cycles without a transfer on any stream that count as a hang
    monitored: list[MonitoredBits] = field(default_factory=list)  # what is looked at in every cycle

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
    """What came out of a phase; its first cycle is 0."""

    outputs: dict[str, list[int]]  # words of each output stream
    cycles: int  # from the first word offered to the last one taken
    # for each word of `outputs` the cycle in which it was taken
    taken_at: dict[str, list[int]] = field(default_factory=dict)
    # what was kept of each of the monitored bits, and the cycles
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
