"""The test in an emitted folder: the words that it sends and expects, and its files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

__all__ = [
    "MADE_BY_TEST", "README_SECTION", "FileWords", "VectorPhase", "Vectors", "selftest_files"]

VECTORS_FILE = "vectors.json"


@dataclass(frozen=True, slots=True)
class FileWords:
    """``count`` words of a memory image of the folder, from line ``first`` on."""

    file: str
    first: int
    count: int


Words: TypeAlias = Sequence[int | FileWords]


@dataclass(frozen=True, slots=True)
class VectorPhase:
    """What is sent after a reset, and what must come out."""

    name: str  # what it tests, for messages
    # words (raw payloads) to send by input stream; a stream that is not named gets none
    inputs: Mapping[str, Words]
    # Words expected by output stream, in order and no more; none of one that is not named.
    # `acts[1]` stands for those words of `acts` whose field `sequence` is 1, where the order
    # between sequences depends on pauses.
    outputs: Mapping[str, Sequence[int]]
    # for an entry of `outputs`, which bits of each word are compared; every bit of a stream
    # that is not named
    masks: Mapping[str, Sequence[int]] = field(default_factory=dict)
    # values of plain input ports from the reset on; 0 of one that is not named
    levels: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not any(self.outputs.values()):
            raise ValueError(f"phase {self.name!r} expects no word: it would test nothing")
        for stream, masks in self.masks.items():
            words = self.outputs.get(stream, ())
            if len(masks) != len(words):
                raise ValueError(
                    f"phase {self.name!r}: {stream} has {len(words)} words, {len(masks)} masks")


@dataclass(frozen=True, slots=True)
class Vectors:
    """Phases for a unit, each after a reset of its own."""

    phases: Sequence[VectorPhase]
    patience: int = 2000  # cycles without a transfer that count as a hang

    def __post_init__(self) -> None:
        if not self.phases:
            raise ValueError("vectors must have a phase, got none")


def vectors_text(vectors: Vectors) -> str:
    """Return ``vectors.json``: words in hexadecimal, ranges of a file as a list."""
    def plain(streams: Mapping[str, Words]) -> dict[str, list[Any]]:
        return {stream: [f"{word:x}" if isinstance(word, int) else
                         [word.file, word.first, word.count] for word in words]
                for stream, words in streams.items()}

    phases = [
        {"name": phase.name, "levels": dict(phase.levels), "inputs": plain(phase.inputs),
         "outputs": plain(phase.outputs), "masks": plain(phase.masks)} for phase in vectors.phases]
    return json.dumps({"patience": vectors.patience, "phases": phases}, indent=1) + "\n"


MADE_BY_TEST = "sim_build"
"""The folder that running the test makes, beside the files."""

README_SECTION = """\
## Test

`make` sends the words of `vectors.json` through the Verilog and compares every word that comes out,
in Verilator or, with `make SIM=icarus`, in Icarus. Each phase is also cut short by a reset, a few
times. It needs cocotb 2 and the simulator, nothing else; for Verilator also `g++`, `make`, `perl`
and a path without spaces.
"""

_MAKEFILE = """\
# Runs the test of this folder. SIM is verilator or icarus, PYTHON one that has cocotb.
PYTHON ?= python3
SIM ?=

.PHONY: test clean
test:
	@$(PYTHON) -B {test} $(SIM)

clean:
	rm -rf {made}
"""
_IMPORT = re.compile(r"from sterna\.hw\.emit\.selftest\.ends import \(.*?\)\n", re.S)
_CODE = re.compile(r"__all__ = \[.*?\]\n", re.S)


def selftest_files(module: str, vectors: Vectors) -> dict[str, str]:
    test = f"test_{module}.py"
    return {test: _test_text(), VECTORS_FILE: vectors_text(vectors),
            "Makefile": _MAKEFILE.format(test=test, made=MADE_BY_TEST)}


def _test_text() -> str:
    """The template with the classes of ``ends`` in place of their import: it stands alone."""
    here = Path(__file__).parent
    before, after = _IMPORT.split((here / "template.py").read_text(encoding="utf-8"))
    _, ends = _CODE.split((here / "ends.py").read_text(encoding="utf-8"))
    before = re.sub(r"  # noqa.*", "", before)
    return f"{before.rstrip()}\n{ends.rstrip()}\n\n\n{after.lstrip()}"
