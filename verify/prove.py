"""Prove every claim about the rows of the array, and check that a fault in each is noticed.

    python verify/prove.py [--only TEXT] [--jobs 2]

Proofs are for all inputs, by the SAT solver of Yosys. A row is proven equal to the definition and
to the generic row, which is also proven equal to the definition. Rows are as short as possible with
every kind of cell that longer ones have.
"""

from __future__ import annotations

import argparse
import enum
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from amaranth.lib import wiring
from row_claims import EqualRows, ExactRow, Fault, NoOverflow, OneBitLess

from sterna.hw.emit.verilog import verilog_files
from sterna.hw.tools.process import MissingToolError, YosysError, end_all, run_yosys
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.hw.units.mac.mac_params import MacParams


class Verdict(enum.StrEnum):
    """Result of the solver."""

    PROVEN = "proven"
    """No counterexample exists, as stated in the log."""
    REFUTED = "refuted"
    """The solver found a counterexample."""
    UNDECIDED = "undecided"
    """Neither text is in the log."""


class Cells(enum.StrEnum):
    """Source of the models of vendor cells."""

    OURS = "sterna"
    """``hw/emit/cells`` of this package."""
    YOSYS = "yosys"
    """Those shipped with Yosys."""


_TIMEOUT_S = 300
_OUR_MODELS = ("ecp5.v", "xc7.v")
_VENDOR_MODELS = {
    "CCU2C": ("+/lattice/ccu2c_sim.vh", "+/lattice/common_sim.vh"),
    "LUT6_2|CARRY4": ("+/xilinx/cells_sim.v",)}
"""Model files by the cells of a family."""

# Memories become registers, which the solver supports.
_PREPARE = """
hierarchy -check -top proof
proc
flatten
delete t:$scopeinfo
memory -nomap
memory_map
opt -full
"""

# Only these messages count: a solver that stops half-way prints neither.
_PROVEN = re.compile(
    r"^(Induction step proven: SUCCESS!|SAT proof finished - no model found: SUCCESS!)$", re.M)
_REFUTED = re.compile(
    r"^(SAT temporal induction proof finished - model found for base case: FAIL!"
    r"|SAT proof finished - model found: FAIL!)$", re.M)


@dataclass(frozen=True, slots=True)
class Question:
    """A claim in Verilog: output ``holds`` of module ``proof`` is always 1.

    ``solve`` is the ``sat`` command.
    """

    verilog: str
    solve: str
    cells: Cells = Cells.OURS


def ask(question: Question, folder: Path) -> Verdict:
    """Run the solver on a question, in an empty folder."""
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
    log = run_yosys(
        folder, f"""
        read_verilog {' '.join(sources)}
        {_PREPARE}
        {question.solve}
        """, timeout_s=_TIMEOUT_S)
    proven, refuted = _PROVEN.search(log), _REFUTED.search(log)
    if bool(proven) == bool(refuted):
        return Verdict.UNDECIDED
    return Verdict.PROVEN if proven else Verdict.REFUTED


_INDUCTION = "sat -tempinduct -prove holds 1 -maxsteps 16"

# A bit of the contents that addition uses: LUT6_2 with I0 and I2 at 1 in the lower half (an
# operand; two of three), CCU2C with B and C. Cells that only start or end a carry are skipped.
_CONTENTS = re.compile(r"\.INIT0?\((64|16)'h(?!(?:0000|ffff|000a)\))([0-9a-f]+)\)")
_BIT = {"64": 5, "16": 6}


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement to prove, and a fault to plant that must refute it.

    ``make`` makes the design of the claim with a given fault. The proof is by induction, thus for
    all times.
    """

    text: str
    make: Callable[[Fault], wiring.Component]
    fault: Fault
    cells: Cells = Cells.OURS

    def question(self, fault: Fault = Fault.NONE) -> Question:
        """Return the question, with or without a fault."""
        design = self.make(fault)
        verilog = verilog_files(design, "proof")["proof.v"]
        if fault is Fault.CELL:
            verilog = plant(verilog)
        return Question(verilog, _INDUCTION, self.cells)


def plant(verilog: str) -> str:
    """Return a design with one bit of the contents of its first adding cell inverted."""
    found = _CONTENTS.search(verilog)
    if not found:
        raise ValueError("there is no cell with contents to plant a fault in")
    bits, contents = found[1], int(found[2], 16)
    faulty = contents ^ (1 << _BIT[bits])
    start, end = found.span(2)
    return f"{verilog[:start]}{faulty:0{len(found[2])}x}{verilog[end:]}"


def _claim(
    kind, style: ArrayStyle, cols: int, fault: Fault, cells: Cells = Cells.OURS,
) -> Claim:
    params = MacParams(1, cols, 4 * cols, style=style)
    return Claim(f"{_TEXTS[kind].format(style=style)}, {cols} x {params.act_bits} bits",
                 lambda planted: kind(params, planted), fault, cells)


def _width(cols: int, max_columns: int) -> Claim:
    def make(fault: Fault) -> wiring.Component:
        kind = MacParams if fault is Fault.NONE else OneBitLess
        return NoOverflow(kind(1, cols, max_columns))

    bits = MacParams(1, cols, max_columns).sum_bits
    return Claim(f"accumulator: {bits} bits hold {max_columns} columns, {cols} a beat",
                 make, Fault.WIDTH)


_TEXTS = {
    ExactRow: "{style} row = definition",
    EqualRows: "{style} row = generic row",
}
_CHAIN, _PAIR = ArrayStyle.ECP5_CHAIN, ArrayStyle.XC7_PAIR

CLAIMS: tuple[Claim, ...] = (
    _claim(ExactRow, ArrayStyle.GENERIC, 6, Fault.CODE),
    _claim(EqualRows, _CHAIN, 6, Fault.CELL),
    _claim(ExactRow, _CHAIN, 6, Fault.CODE, Cells.YOSYS),
    _claim(EqualRows, _PAIR, 6, Fault.CELL, Cells.YOSYS),
    _claim(ExactRow, _PAIR, 6, Fault.CODE),
    *(_width(cols, max_columns) for cols, max_columns in (
        (1, 1), (4, 16), (5, 17), (128, 128), (128, 384))),
)
"""Claims proven by ``make prove``."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Verdicts on a claim and on its negative control, the claim with its fault.

    ``seconds`` is the time for both; ``error`` the reason if there is no verdict.
    """

    claim: Claim
    verdict: Verdict
    control: Verdict
    seconds: float
    error: str = ""

    @property
    def is_good(self) -> bool:
        """Whether the claim is proven, and refuted with the fault."""
        return self.verdict is Verdict.PROVEN and self.control is Verdict.REFUTED


def prove(claim: Claim) -> Outcome:
    """Check a claim as it is, then with its fault."""
    begin = time.monotonic()
    verdicts, error = [], ""
    for fault in (Fault.NONE, claim.fault):
        with tempfile.TemporaryDirectory(prefix="sterna-proof-") as folder:
            try:
                verdicts.append(ask(claim.question(fault), Path(folder)))
            except YosysError as failure:
                verdicts.append(Verdict.UNDECIDED)
                error = error or str(failure)
    return Outcome(claim, *verdicts, time.monotonic() - begin, error)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line per claim; return 1 if one is not proven or a fault not noticed."""
    parser = argparse.ArgumentParser(
        prog="python verify/prove.py",
        description="Prove by SAT that the rows of the array compute what they must.")
    parser.add_argument("--only", default="", help="claims whose text has this in it")
    parser.add_argument("--jobs", type=int, default=2, help="proofs at a time")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {options.jobs}")
    claims = [claim for claim in CLAIMS if options.only in claim.text]
    if not claims:
        parser.error(f"no claim has {options.only!r} in it")

    pool = ThreadPoolExecutor(options.jobs)
    futures = [pool.submit(prove, claim) for claim in claims]
    try:
        return _report(claims, futures)
    except KeyboardInterrupt:
        _stop(futures)
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        pool.shutdown(cancel_futures=True)


def _stop(futures: Sequence[Future[Outcome]]) -> None:
    """End running proofs and start no others."""
    running = [future for future in futures if not future.cancel()]
    # Repeatedly: a thread may be about to start a tool, or continue with the negative control.
    while wait(running, timeout=0.1).not_done:
        end_all()


def _report(claims: Sequence[Claim], futures: Sequence[Future[Outcome]]) -> int:
    """Print a line per claim when its outcome is known; return the exit code."""
    begin, bad = time.monotonic(), 0
    width = max(len(claim.text) for claim in claims)
    print(f"{'claim':{width}}  {'models':6}  {'result':9}  {'seconds':>7}  "
          f"with a fault")
    for claim, future in zip(claims, futures, strict=True):
        outcome = future.result()
        print(f"{claim.text:{width}}  {claim.cells:6}  "
              f"{outcome.verdict:9}  {outcome.seconds:7.1f}  "
              f"{outcome.control} ({claim.fault})", flush=True)
        if not outcome.is_good:
            bad += 1
            print(f"  FAILED: wanted proven and refuted {outcome.error}", flush=True)
    good = len(claims) - bad
    print(f"{good} of {len(claims)} claims proven and their faults noticed, "
          f"in {time.monotonic() - begin:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MissingToolError as missing:
        sys.exit(str(missing))
