"""A bench for units in Amaranth's simulator: a driver for each stream in, a sink for each out."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from amaranth.hdl import Const, Elaboratable, ResetInserter, Signal, Value

from sterna.hw.testbench.amaranth import run_bench

__all__ = ["Passed", "Pauses", "StreamRun", "run_ports", "run_stream", "run_streams"]


@dataclass(frozen=True, slots=True)
class Pauses:
    """Probabilities that drivers and sinks, all alike or by name, pause in a cycle; the seed."""

    driver: float = 0.0
    sink: float | Mapping[str, float] = 0.0
    seed: int = 0

    def of_sink(self, name: str) -> float:
        return self.sink if isinstance(self.sink, float) else self.sink.get(name, 0.0)


@dataclass(slots=True)
class Passed:
    """What passed on a stream: payloads as raw integers, and cycles."""

    payloads: list[int] = field(default_factory=list)
    at: list[int] = field(default_factory=list)             # of each transfer
    offered_at: list[int] = field(default_factory=list)     # the first with each payload
    ready_at: list[int] = field(default_factory=list)       # all, of a stream in


def run_ports(
    dut: Elaboratable, inputs: Mapping[str, Any], outputs: Mapping[str, Any],
    phases: Sequence[tuple[Mapping[str, Sequence[int]], Mapping[str, int], int | None]], *,
    pauses: Pauses = Pauses(), max_cycles: int = 20_000,
    hold: Callable[[Any, dict[str, Passed]], bool] = lambda ctx, run: False,
) -> list[dict[str, Passed]]:
    """Run phases of (payloads to send, how many to take, cycles or None), each after a reset.

    A phase ends when all have been taken, or after its cycles. Payloads are noise while nothing
    is offered, and nothing new is offered in a cycle in which ``hold`` says so. AssertionError
    if a phase takes too long, or if the unit withdraws or changes what it offers. A stream whose
    ``ready`` is a constant has a sink that never pauses.
    """
    reset = Signal()
    dice = random.Random(pauses.seed)
    payload_of = {name: Value.cast(stream.payload)
                  for name, stream in {**inputs, **outputs}.items()}
    pausing = {name: stream.ready for name, stream in outputs.items()
               if not isinstance(stream.ready, Const)}
    runs: list[dict[str, Passed]] = []

    async def bench(ctx):
        for sends, wanted, limit in phases:
            for stream in inputs.values():
                ctx.set(stream.valid, 0)
            for ready in pausing.values():
                ctx.set(ready, 0)
            ctx.set(reset, 1)
            await ctx.tick()
            ctx.set(reset, 0)
            run = {name: Passed() for name in payload_of}
            runs.append(run)
            cycle = 0
            while cycle != limit and any(
                    len(run[name].at) < count for name, count in wanted.items()):
                assert cycle < max_cycles, f"{run} in {max_cycles} cycles ({pauses})"
                held = hold(ctx, run)
                for name, stream in inputs.items():
                    passed, due = run[name], sends.get(name, ())
                    index = len(passed.at)
                    if (len(passed.offered_at) == index < len(due) and not held
                            and dice.random() >= pauses.driver):
                        passed.offered_at.append(cycle)
                    offered = len(passed.offered_at) > index
                    ctx.set(stream.valid, offered)
                    payload = payload_of[name]
                    ctx.set(payload, due[index] if offered else dice.getrandbits(len(payload)))
                takes = {name: dice.random() >= pauses.of_sink(name) for name in pausing}
                for name, ready in pausing.items():
                    ctx.set(ready, takes[name])

                # After the settling of this cycle, before its end.
                for name, stream in inputs.items():
                    passed = run[name]
                    if ctx.get(stream.ready):
                        passed.ready_at.append(cycle)
                        if len(passed.offered_at) > len(passed.at):
                            passed.payloads.append(sends[name][len(passed.at)])
                            passed.at.append(cycle)
                for name, stream in outputs.items():
                    passed = run[name]
                    valid, payload = ctx.get(stream.valid), ctx.get(payload_of[name])
                    if len(passed.offered_at) > len(passed.at):
                        assert (valid, payload) == (1, passed.payloads[-1]), (
                            f"cycle {cycle}: {name} withdrew or changed what waited ({pauses})")
                    elif valid:
                        passed.offered_at.append(cycle)
                        passed.payloads.append(payload)
                    if valid and takes.get(name, True):
                        passed.at.append(cycle)
                await ctx.tick()
                cycle += 1

    run_bench(ResetInserter(reset)(dut), bench)
    return runs


@dataclass(slots=True)
class StreamRun:
    """What a unit with one stream in and one out gave, and the cycle of each transfer."""

    results: list[int]
    sent_at: list[int]
    taken_at: list[int]

    @classmethod
    def of(cls, sent: Passed, taken: Passed) -> StreamRun:
        return cls(taken.payloads[:len(taken.at)], sent.at, taken.at)


def run_streams(
    dut: Elaboratable, inputs, outputs, phases: Sequence[tuple[Sequence[int], int]], *,
    pauses: Pauses = Pauses(), max_cycles: int,
) -> list[StreamRun]:
    """Send the payloads of each phase into one stream, and take so many from another.

    A phase that asks for fewer than its payloads give is cut off by the next reset.
    """
    runs = run_ports(
        dut, {"in": inputs}, {"out": outputs},
        [({"in": payloads}, {"out": count}, None) for payloads, count in phases],
        pauses=pauses, max_cycles=max_cycles)
    return [StreamRun.of(run["in"], run["out"]) for run in runs]


def run_stream(
    dut: Elaboratable, inputs, outputs, payloads: Sequence[int], results: int, *,
    pauses: Pauses = Pauses(), max_cycles: int,
) -> StreamRun:
    """:func:`run_streams` with a single phase."""
    run, = run_streams(dut, inputs, outputs, [(payloads, results)], pauses=pauses,
                       max_cycles=max_cycles)
    return run
