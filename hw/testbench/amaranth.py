"""A bench for units with one stream in and one stream out, in Amaranth's simulator."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from amaranth.hdl import Const, Elaboratable, ResetInserter, Signal, Value
from amaranth.sim import Simulator

__all__ = ["Pauses", "StreamRun", "run_bench", "run_stream", "run_streams"]


@dataclass(frozen=True, slots=True)
class Pauses:
    """Probabilities that driver and sink of a bench pause in a cycle, and the seed."""

    driver: float = 0.0
    sink: float = 0.0
    seed: int = 0


@dataclass(slots=True)
class StreamRun:
    """What a bench saw."""

    # payloads taken from the unit, as raw integers
    results: list[int] = field(default_factory=list)
    # cycle of each transfer into and out of the unit
    sent_at: list[int] = field(default_factory=list)
    taken_at: list[int] = field(default_factory=list)


def run_bench(dut: Elaboratable, bench: Callable[[Any], Awaitable[None]]) -> None:
    """Simulate a unit with a clock of 1 MHz until ``bench``, a testbench of Amaranth, ends."""
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


def run_stream(
    dut: Elaboratable, inputs, outputs, payloads: Sequence[int], results: int, *,
    pauses: Pauses = Pauses(), max_cycles: int,
) -> StreamRun:
    """Send ``payloads`` into ``inputs`` and take ``results`` payloads from ``outputs``.

    Payloads are raw integers, in the bit layout of the stream. AssertionError if it takes more
    than ``max_cycles``, or if the unit withdraws or changes what it offers.
    """
    (run,) = run_streams(dut, inputs, outputs, [(payloads, results)], pauses=pauses,
                         max_cycles=max_cycles)
    return run


def run_streams(
    dut: Elaboratable, inputs, outputs, phases: Sequence[tuple[Sequence[int], int]], *,
    pauses: Pauses = Pauses(), max_cycles: int,
) -> list[StreamRun]:
    """Like :func:`run_stream`, several times in one simulation, with a reset before each.

    A phase that asks for fewer results than its payloads give is cut off by the next reset. An
    output that is always ready has a sink that never pauses.
    """
    reset = Signal()
    payload_in, payload_out = Value.cast(inputs.payload), Value.cast(outputs.payload)
    # Where nothing can wait, ``ready`` is a constant.
    ready = Signal() if isinstance(outputs.ready, Const) else outputs.ready
    dice = random.Random(pauses.seed)
    runs: list[StreamRun] = []

    async def bench(ctx):
        for payloads, wanted in phases:
            ctx.set(inputs.valid, 0)
            ctx.set(ready, 0)
            ctx.set(reset, 1)
            await ctx.tick()
            ctx.set(reset, 0)
            run, offered, held, cycle = StreamRun(), False, None, 0
            runs.append(run)
            while len(run.results) < wanted:
                assert cycle < max_cycles, (
                    f"{len(run.results)} of {wanted} results and {len(run.sent_at)} of "
                    f"{len(payloads)} payloads passed in {max_cycles} cycles ({pauses})")
                pending = len(run.sent_at) < len(payloads)
                if pending and not offered and dice.random() >= pauses.driver:
                    ctx.set(payload_in, payloads[len(run.sent_at)])
                    offered = True
                taking = ready is not outputs.ready or dice.random() >= pauses.sink
                ctx.set(inputs.valid, offered)
                ctx.set(ready, taking)
                _, _, accepted, valid, payload = await ctx.tick().sample(
                    inputs.ready, outputs.valid, payload_out)
                if offered and accepted:
                    run.sent_at.append(cycle)
                    offered = False
                assert held is None or (valid and payload == held), (
                    f"cycle {cycle}: a payload that waited was withdrawn or changed ({pauses})")
                held = payload if valid and not taking else None
                if valid and taking:
                    run.results.append(payload)
                    run.taken_at.append(cycle)
                cycle += 1

    run_bench(ResetInserter(reset)(dut), bench)
    return runs
