"""The cocotb bench: feed one stream, collect another, with random pauses at both ends.

One coroutine drives and samples. After a rising edge, reads give the values from just
before it and writes take effect just after it, in Verilator and Icarus alike, so a
transfer happened exactly if valid and ready both read as 1.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge

from sterna.sim.job import Job, Phase, PhaseResult, write_results

__all__ = ["run_job"]

_PAUSE = 0.25
"""Chance that an end pauses in a cycle."""

_DRAIN = 40
"""Cycles at the end of a phase in which nothing more may come out."""

_PATIENCE = 2000
"""Cycles without any transfer that count as a hang."""


@cocotb.test()
async def run_job(dut: Any) -> None:
    """Run the job named by the environment, and write what came out."""
    job = Job.read(Path(os.environ["STERNA_JOB"]))
    rng = random.Random(job.seed)
    Clock(dut.clk, 10, unit="ns").start()
    results = []
    await _reset(dut, job)
    for phase in job.phases:
        if phase.reset:
            await _reset(dut, job)
        results.append(await _run_phase(dut, job, phase, rng))
    write_results(Path(os.environ["STERNA_RESULTS"]), results)


async def _reset(dut: Any, job: Job) -> None:
    edge = RisingEdge(dut.clk)
    getattr(dut, f"{job.input}__valid").value = 0
    getattr(dut, f"{job.input}__payload").value = 0
    getattr(dut, f"{job.output}__ready").value = 0
    dut.rst.value = 1
    await edge
    await edge
    dut.rst.value = 0
    await edge


async def _run_phase(dut: Any, job: Job, phase: Phase, rng: random.Random) -> PhaseResult:
    edge = RisingEdge(dut.clk)
    in_payload = getattr(dut, f"{job.input}__payload")
    in_valid = getattr(dut, f"{job.input}__valid")
    in_ready = getattr(dut, f"{job.input}__ready")
    out_payload = getattr(dut, f"{job.output}__payload")
    out_valid = getattr(dut, f"{job.output}__valid")
    out_ready = getattr(dut, f"{job.output}__ready")

    sent = 0
    outputs: list[int] = []
    offering = taking = False
    waiting: int | None = None      # what the output offered in a cycle when we paused
    cycles = idle = 0
    while sent < len(phase.inputs) or len(outputs) < phase.outputs:
        # Once offered, a beat stays until it is taken.
        if not offering and sent < len(phase.inputs):
            offering = not (phase.stalls and rng.random() < _PAUSE)
            if offering:
                in_payload.value = phase.inputs[sent]
        taking = not (phase.stalls and rng.random() < _PAUSE)
        in_valid.value = int(offering)
        out_ready.value = int(taking)
        await edge
        cycles += 1
        idle += 1
        if offering and in_ready.value == 1:
            offering, sent, idle = False, sent + 1, 0
        if out_valid.value == 1:
            word = int(out_payload.value)
            if waiting not in (None, word):
                raise AssertionError(
                    f"{phase.name}: output {len(outputs)} changed while it waited to be taken")
            waiting = None if taking else word
            if taking:
                outputs.append(word)
                idle = 0
        elif waiting is not None:
            raise AssertionError(
                f"{phase.name}: output {len(outputs)} was withdrawn before it was taken")
        if idle > _PATIENCE:
            raise TimeoutError(
                f"{phase.name}: no transfer for {_PATIENCE} cycles with {sent} of "
                f"{len(phase.inputs)} beats sent and {len(outputs)} of {phase.outputs} received")
    in_valid.value = 0
    out_ready.value = 1
    for _ in range(_DRAIN if phase.outputs else 0):      # a phase that is cut has none
        await edge
        if out_valid.value == 1:
            raise AssertionError(
                f"{phase.name}: more came out than the {phase.outputs} words expected")
    out_ready.value = 0
    return PhaseResult(outputs, cycles)
