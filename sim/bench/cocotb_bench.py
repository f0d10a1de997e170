"""The cocotb bench: feed some streams, collect others, with random pauses at every end.

One coroutine drives and samples all of them; :mod:`sterna.sim.bench.ends` has the protocol.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge

from sterna.hw.testbench.job import Job, Pause, Phase, PhaseResult, write_results
from sterna.sim.bench.ends import Consumer, Observer, Producer

__all__ = ["run_job"]

_STALL = Pause(0.25)
"""How an end of a phase with stalls pauses."""


@cocotb.test()
async def run_job(dut: Any) -> None:
    """Run the job named by the environment, and write what came out."""
    job = Job.read(Path(os.environ["STERNA_JOB"]))
    rng = random.Random(job.seed)
    Clock(dut.clk, 10, unit="ns").start()
    results = []
    for name in job.levels:
        getattr(dut, name).value = 0
    await _reset(dut, job)
    for phase in job.phases:
        if phase.reset:
            await _reset(dut, job)
        results.append(await _run_phase(dut, job, phase, rng))
    write_results(Path(os.environ["STERNA_RESULTS"]), results)


async def _reset(dut: Any, job: Job) -> None:
    edge = RisingEdge(dut.clk)
    for name in job.inputs:
        getattr(dut, f"{name}__valid").value = 0
        getattr(dut, f"{name}__payload").value = 0
    for name in job.outputs:
        getattr(dut, f"{name}__ready").value = 0
    dut.rst.value = 1
    await edge
    await edge
    dut.rst.value = 0
    await edge


async def _set_plain_inputs(dut: Any, phase: Phase) -> None:
    for name, level in phase.levels.items():
        getattr(dut, name).value = level
    if phase.pulse:
        for value in (1, 0):
            for name in phase.pulse:
                getattr(dut, name).value = value
            if value:
                await RisingEdge(dut.clk)


async def _run_phase(dut: Any, job: Job, phase: Phase, rng: random.Random) -> PhaseResult:
    edge = RisingEdge(dut.clk)
    await _set_plain_inputs(dut, phase)

    def pause_of(name: str) -> Pause | None:
        return phase.pauses.get(name, _STALL if phase.stalls else None)

    producers = [
        Producer(dut, name, phase.inputs.get(name, []), pause_of(name), rng)
        for name in job.inputs]
    consumers = [
        Consumer(dut, name, pause_of(name), rng, phase.name) for name in job.outputs]
    observers = [
        Observer(dut, port, [monitor for monitor in job.monitors if monitor.port == port])
        for port in sorted({monitor.port for monitor in job.monitors})]
    wanted = {name: phase.outputs.get(name, 0) for name in job.outputs}
    cut = not any(wanted.values())

    cycles = idle = 0
    left = phase.linger if cut else 0
    while True:
        if all(producer.done for producer in producers) and all(
                len(consumer.words) >= wanted[consumer.name] for consumer in consumers):
            if not left:
                break
            left -= 1
        for producer in producers:
            producer.drive()
        for consumer in consumers:
            consumer.drive()
        await edge
        idle += 1
        for observer in observers:
            observer.sample(cycles)
        for producer in producers:
            if producer.sample():
                idle = 0
        for consumer in consumers:
            if consumer.sample(cycles):
                idle = 0
                if not cut and len(consumer.words) > wanted[consumer.name]:
                    _too_many(phase, consumer.name, wanted[consumer.name])
        cycles += 1
        if idle > job.patience:
            counts = [f"{producer.sent} of {len(producer.words)} {producer.name} sent"
                      for producer in producers]
            counts += [f"{len(consumer.words)} of {wanted[consumer.name]} {consumer.name} "
                       f"received" for consumer in consumers]
            raise TimeoutError(
                f"{phase.name}: no transfer for {job.patience} cycles with {', '.join(counts)}")
    for producer in producers:
        producer.stop()
    for consumer in consumers:
        consumer.open()
    for cycle in range(0 if cut else job.drain):
        await edge
        for observer in observers:
            observer.sample(cycles + cycle)
        for consumer in consumers:
            if consumer.offered():
                _too_many(phase, consumer.name, wanted[consumer.name])
    for consumer in consumers:
        consumer.close()
    return PhaseResult(
        {consumer.name: consumer.words for consumer in consumers}, cycles,
        {consumer.name: consumer.taken_at for consumer in consumers},
        {name: words for observer in observers for name, words in observer.seen.items()},
        {name: at for observer in observers for name, at in observer.seen_at.items()})


def _too_many(phase: Phase, stream: str, count: int) -> None:
    raise AssertionError(
        f"{phase.name}: more came out of {stream} than the {count} words expected")
