"""Run by cocotb: AXI4-Stream sources and sinks that are not ours, at the ends of a wrapper.

``AXIS_JOB`` names a file with a list of phases: for each input stream the frames to send, for
each output stream how many words to take. The frames that came out go to ``AXIS_RESULTS``.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, with_timeout
from cocotbext.axi import AxiStreamBus, AxiStreamSink, AxiStreamSource

SEED = 5


def pauses(seed: str) -> Iterator[bool]:
    chance = random.Random(seed)
    while True:
        yield chance.random() < 0.4


def end(kind, dut, prefix: str):
    found = kind(AxiStreamBus.from_prefix(dut, prefix), dut.aclk, dut.aresetn,
                 reset_active_level=False)
    found.set_pause_generator(pauses(f"{SEED} {prefix}"))
    return found


async def taken(sink, words: int) -> list[str]:
    """The frames of a stream as hexadecimal bytes, up to a number of words in all."""
    frames: list[str] = []
    while words > 0:
        frame = await with_timeout(sink.recv(), 200, "us")
        frames.append(bytes(frame.tdata).hex())
        words -= len(frame.tdata) // sink.byte_lanes
    assert words == 0
    return frames


@cocotb.test()
async def frames_pass(dut) -> None:
    phases = json.loads(Path(os.environ["AXIS_JOB"]).read_text())
    cocotb.start_soon(Clock(dut.aclk, 10, unit="ns").start())
    dut.aresetn.value = 0
    sources = {name: end(AxiStreamSource, dut, name) for name in phases[0]["inputs"]}
    sinks = {name: end(AxiStreamSink, dut, name) for name in phases[0]["outputs"]}
    results = []
    for phase in phases:
        dut.aresetn.value = 0
        await ClockCycles(dut.aclk, 3)
        for name in phase["outputs"]:
            assert getattr(dut, f"{name}_tvalid").value == 0
        dut.aresetn.value = 1
        for name, frames in phase["inputs"].items():
            for frame in frames:
                sources[name].send_nowait(bytes.fromhex(frame))
        waiting = {name: cocotb.start_soon(taken(sinks[name], words))
                   for name, words in phase["outputs"].items()}
        results.append({name: await task for name, task in waiting.items()})
        await ClockCycles(dut.aclk, 20)
        assert all(sink.empty() for sink in sinks.values())
    Path(os.environ["AXIS_RESULTS"]).write_text(json.dumps(results))
