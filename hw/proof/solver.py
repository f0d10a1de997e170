"""Asking the SAT solver of Yosys whether a claim holds always."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from sterna.hw.emit.tools import run_yosys

__all__ = ["Answer", "Cells", "Question", "Verdict", "ask"]


class Verdict(enum.StrEnum):
    """What the solver said."""

    PROVEN = "proven"
    """No counterexample exists; the solver said so in words."""
    REFUTED = "refuted"
    """The solver found a counterexample."""
    UNDECIDED = "undecided"
    """Neither text is in the log."""


class Cells(enum.StrEnum):
    """Where the models of the vendor cells come from."""

    OURS = "sterna"
    """``hw/emit/cells`` of this package."""
    YOSYS = "yosys"
    """Those that Yosys brings along."""


_OUR_MODELS = ("ecp5.v", "xc7.v")
_VENDOR_MODELS = {
    r"CCU2C|TRELLIS_DPR16X4": ("+/lattice/ccu2c_sim.vh", "+/lattice/common_sim.vh"),
    r"LUT6_2|CARRY4|RAM32M": ("+/xilinx/cells_sim.v",)}
"""By the cells of a family."""

# Contents of memories become registers, which the solver knows.
_PREPARE = """
hierarchy -check -top proof
proc
flatten
delete t:$scopeinfo
memory -nomap
memory_map
opt -full
"""

# Only a text counts: a solver that stops half-way says neither.
_PROVEN = re.compile(
    r"^(Induction step proven: SUCCESS!|SAT proof finished - no model found: SUCCESS!)$", re.M)
_REFUTED = re.compile(
    r"^(SAT temporal induction proof finished - model found for base case: FAIL!"
    r"|SAT proof finished - model found: FAIL!)$", re.M)


@dataclass(frozen=True, slots=True)
class Question:
    """A claim in Verilog: output ``holds`` of module ``proof`` is 1, always.

    Parameters
    ----------
    verilog
        The module and its submodules, vendor cells apart.
    solve
        The ``sat`` command.
    cells
        Models to use.
    extra_models
        Verilog of models that take the place of those.
    """

    verilog: str
    solve: str
    cells: Cells = Cells.OURS
    extra_models: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a question.

    Parameters
    ----------
    verdict
        What the solver said.
    log
        All of it.
    """

    verdict: Verdict
    log: str


def ask(question: Question, folder: Path, *, timeout_s: float = 300) -> Answer:
    """Put a question to the solver.

    Parameters
    ----------
    question
        The claim.
    folder
        An empty folder to work in.
    timeout_s
        Deadline in seconds.

    Raises
    ------
    MissingToolError
        If Yosys is not installed.
    YosysError
        If it fails or takes too long.
    """
    sources = ["proof.v"]
    (folder / "proof.v").write_text(question.verilog, encoding="utf-8")
    if question.cells is Cells.OURS:
        for name in _OUR_MODELS:
            model = (files("sterna.hw.emit.cells") / name).read_text(encoding="utf-8")
            (folder / name).write_text(model, encoding="utf-8")
            sources.append(name)
    else:
        sources += [name for cells, names in _VENDOR_MODELS.items()
                    if re.search(rf"^\s*({cells}) ", question.verilog, re.M) for name in names]
    (folder / "extra.v").write_text(question.extra_models, encoding="utf-8")
    log = run_yosys(
        folder, f"""
        read_verilog {' '.join(sources)}
        read_verilog -overwrite extra.v
        {_PREPARE}
        {question.solve}
        """, timeout_s=timeout_s)
    proven, refuted = _PROVEN.search(log), _REFUTED.search(log)
    if bool(proven) == bool(refuted):
        return Answer(Verdict.UNDECIDED, log)
    return Answer(Verdict.PROVEN if proven else Verdict.REFUTED, log)
