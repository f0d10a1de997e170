"""Prove every claim and see that a fault in each is noticed: ``python -m sterna.hw.proof``."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from sterna.hw.emit.tools import MissingToolError, YosysError, end_all
from sterna.hw.proof.row_bench import Fault
from sterna.hw.proof.solver import Verdict, ask
from sterna.hw.proof.suite import CLAIMS, Claim

__all__ = ["Outcome", "main", "prove"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the solver said of a claim, and of its negative control: the claim with its fault.

    ``seconds`` is how long both took; ``error`` says why there is no verdict, if so.
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
    """Ask for a claim as it is, then with its fault."""
    begin = time.monotonic()
    verdicts, error = [], ""
    for fault in (Fault.NONE, claim.fault):
        with tempfile.TemporaryDirectory(prefix="sterna-proof-") as folder:
            try:
                verdicts.append(ask(claim.question(fault), Path(folder)).verdict)
            except YosysError as failure:
                verdicts.append(Verdict.UNDECIDED)
                error = error or str(failure)
    return Outcome(claim, *verdicts, time.monotonic() - begin, error)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each claim; return 1 if one is not proven or a fault not noticed."""
    parser = argparse.ArgumentParser(
        prog="python -m sterna.hw.proof",
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
    """End the proofs that run, and begin no other."""
    running = [future for future in futures if not future.cancel()]
    # Again and again: a thread may be about to start a tool, or go on with the negative control.
    while wait(running, timeout=0.1).not_done:
        end_all()


def _report(claims: Sequence[Claim], futures: Sequence[Future[Outcome]]) -> int:
    """Print a line for each claim as its outcome is known; return the exit code."""
    begin, bad = time.monotonic(), 0
    width = max(len(claim.text) for claim in claims)
    print(f"{'claim':{width}}  {'method':9}  {'models':6}  {'result':9}  {'seconds':>7}  "
          f"with a fault")
    for claim, future in zip(claims, futures, strict=True):
        outcome = future.result()
        print(f"{claim.text:{width}}  {claim.method:9}  {claim.cells:6}  "
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
