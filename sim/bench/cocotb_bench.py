"""The cocotb bench: a driver or a sink at every stream, with random pauses, and monitors.

One coroutine runs all of them; :mod:`sterna.hw.emit.selftest.ends` has the protocol.
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge

from sterna.hw.emit.selftest.ends import (
    StreamDriver,
    StreamSink,
    exchange,
    nothing_more,
    reset,
)
from sterna.hw.testbench.job import Job, MonitoredBits, Pause, Phase, PhaseResult, write_results

__all__ = ["PortMonitor", "run_job"]


class PortMonitor:
    """Samples an output port in every cycle and records the valid bits."""

    def __init__(self, dut: Any, port: str, monitored: list[MonitoredBits]) -> None:
        self._port = getattr(dut, port)
        self._fields = [
            (bits.name, bits.low, (1 << bits.width) - 1) for bits in monitored]
        self._any = sum(1 << bits.low for bits in monitored)
        self.seen: dict[str, list[int]] = {name: [] for name, _, _ in self._fields}
        self.seen_at: dict[str, list[int]] = {name: [] for name, _, _ in self._fields}

    def sample(self, cycle: int) -> None:
        """Record the valid bits. Others may be unknown, like registers without a reset in a
        four-state simulator."""
        value = self._port.value
        try:
            word, unknown = int(value), 0
        except ValueError:
            bits = str(value)
            word = int(re.sub("[^1]", "0", bits), 2)
            unknown = int(re.sub("[^01]", "1", bits.replace("1", "0")), 2)
        if not (word | unknown) & self._any:
            return
        for name, low, mask in self._fields:
            if (word | unknown) >> low & 1:
                if unknown >> low & mask:
                    raise AssertionError(f"{name} has unknown bits in cycle {cycle}")
                self.seen[name].append(word >> low & mask)
                self.seen_at[name].append(cycle)


_PAUSE = Pause(0.25)
"""Random pauses of drivers and sinks."""


@cocotb.test()
async def run_job(dut: Any) -> None:
    """Run the job named by the environment and write the results."""
    job = Job.read(Path(os.environ["STERNA_JOB"]))
    rng = random.Random(job.seed)
    Clock(dut.clk, 10, unit="ns").start()
    results = []
    edge = RisingEdge(dut.clk)
    await reset(dut, edge, job.inputs, job.outputs, dict.fromkeys(job.levels, 0))
    for phase in job.phases:
        if phase.reset:
            await reset(dut, edge, job.inputs, job.outputs, {})
        results.append(await _run_phase(dut, job, phase, rng))
    write_results(Path(os.environ["STERNA_RESULTS"]), results)


async def _run_phase(dut: Any, job: Job, phase: Phase, rng: random.Random) -> PhaseResult:
    """Send the words of a phase, receive the outputs, and sample all monitored bits."""
    edge = RisingEdge(dut.clk)
    for name, level in phase.levels.items():
        getattr(dut, name).value = level

    def pause_of(name: str) -> Pause | None:
        return phase.pauses.get(name, _PAUSE if phase.random_pauses else None)

    drivers = [StreamDriver(dut, name, phase.inputs.get(name, []), pause_of(name), rng)
               for name in job.inputs]
    sinks = [StreamSink(dut, name, pause_of(name), rng, phase.name) for name in job.outputs]
    monitors = [PortMonitor(dut, port, [bits for bits in job.monitored if bits.port == port])
                for port in sorted({bits.port for bits in job.monitored})]
    wanted = {name: phase.outputs.get(name, 0) for name in job.outputs}
    # A phase that expects nothing: ignore its output.
    cut = not any(wanted.values())
    left = phase.cut_after if cut else 0

    def watch(cycle: int) -> None:
        for monitor in monitors:
            monitor.sample(cycle)

    def ends(cycle: int, done: bool) -> bool:
        nonlocal left
        left -= done
        return done and left < 0

    cycles = await exchange(edge, drivers, sinks, wanted, phase.name, job.patience, ends=ends,
                            is_bounded=not cut, watch=watch)
    if not cut:
        await nothing_more(edge, sinks, wanted, range(cycles, cycles + phase.drain), watch)
    for sink in sinks:
        sink.close()
    return PhaseResult(
        {sink.name: sink.words for sink in sinks}, cycles,
        {sink.name: sink.taken_at for sink in sinks},
        {name: words for each in monitors for name, words in each.seen.items()},
        {name: at for each in monitors for name, at in each.seen_at.items()})
