"""A bench for NormQuant: every sequence has its driver, both outputs a sink."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from amaranth.hdl import ResetInserter, Signal, Value

from sterna.hw.testbench.amaranth import run_bench
from sterna.hw.units.norm_params import NormParams
from sterna.hw.units.norm_quant import NormQuant
from sterna.model.quantized.integer import norm_quant

__all__ = ["NormEvents", "NormPauses", "check_cycles", "check_events", "run_norm"]


@dataclass(frozen=True, slots=True)
class NormPauses:
    """Probabilities that a driver or a sink pauses in a cycle, and the seed."""

    words: float = 0.0
    acts: float = 0.0
    scales: float = 0.0
    seed: int = 0


@dataclass(slots=True)
class NormEvents:
    """What happened, and in which cycle."""

    # for each sequence, the cycles in which its words were taken, and in which it was ready
    words: list[list[int]]
    ready: list[list[int]]
    services: list[tuple[int, int]] = field(default_factory=list)    # cycle and sequence
    # of each transfer: first cycle in which it was offered, cycle in which it was taken, payload
    acts: list[tuple[int, int, dict]] = field(default_factory=list)
    scales: list[tuple[int, int, dict]] = field(default_factory=list)


def run_norm(
    dut: NormQuant, phases: Sequence[Sequence[Sequence[np.ndarray]]], *,
    pauses: NormPauses = NormPauses(), cut: Sequence[int | None] | None = None,
    max_cycles: int = 20_000,
) -> list[NormEvents]:
    """Run ``phases[phase][sequence]``, lists of vectors, with a reset before each phase.

    A phase ends when the scale of every vector was taken, or after ``cut[phase]`` cycles.
    """
    params = dut.params
    reset = Signal()
    dice = random.Random(pauses.seed)
    outputs = {"acts": (dut.acts, params.act_layout, pauses.acts),
               "scales": (dut.scales, params.scale_layout, pauses.scales)}
    runs: list[NormEvents] = []

    async def bench(ctx):
        for phase, vectors in enumerate(phases):
            for stream in dut.words:
                ctx.set(stream.valid, 0)
            ctx.set(dut.acts.ready, 0)
            ctx.set(dut.scales.ready, 0)
            ctx.set(reset, 1)
            await ctx.tick()
            ctx.set(reset, 0)

            limit = None if cut is None else cut[phase]
            due = [pack(params, of_sequence) for of_sequence in vectors]
            offered = [False] * params.sequences
            held: dict[str, tuple[int, int]] = {}
            wanted = sum(len(of_sequence) for of_sequence in vectors)
            events = NormEvents([[] for _ in vectors], [[] for _ in vectors])
            runs.append(events)
            cycle = 0
            while len(events.scales) < wanted and (limit is None or cycle < limit):
                assert cycle < max_cycles, (events, pauses)
                for sequence, stream in enumerate(dut.words):
                    sent = len(events.words[sequence])
                    if sent < len(due[sequence]) and dice.random() >= pauses.words:
                        offered[sequence] = True
                    ctx.set(stream.valid, offered[sequence])
                    # Without a word to offer, the payload is whatever there may be.
                    ctx.set(Value.cast(stream.payload), due[sequence][sent]
                            if offered[sequence] else dice.getrandbits(params.word_layout.size))
                takes = {name: dice.random() >= pause for name, (_, _, pause) in outputs.items()}
                for name, (stream, _, _) in outputs.items():
                    ctx.set(stream.ready, takes[name])

                # After the settling of this cycle, before its end.
                for sequence, stream in enumerate(dut.words):
                    if ctx.get(stream.ready):
                        events.ready[sequence].append(cycle)
                        if offered[sequence]:
                            events.words[sequence].append(cycle)
                            offered[sequence] = False
                if ctx.get(dut.service):
                    events.services.append(
                        (cycle, ctx.get(dut.service_sequence) if params.sequences > 1 else 0))
                for name, (stream, layout, _) in outputs.items():
                    valid, payload = ctx.get(stream.valid), ctx.get(Value.cast(stream.payload))
                    if name in held:
                        assert (valid, payload) == (1, held[name][1]), (
                            f"cycle {cycle}: {name} withdrew or changed what waited ({pauses})")
                    if valid:
                        first = held.pop(name, (cycle, payload))[0]
                        if takes[name]:
                            getattr(events, name).append((first, cycle, fields(layout, payload)))
                        else:
                            held[name] = (first, payload)
                await ctx.tick()
                cycle += 1

    run_bench(ResetInserter(reset)(dut), bench)
    return runs


def pack(params: NormParams, vectors: Sequence[np.ndarray]) -> list[int]:
    """Return the payloads of the words of vectors, one vector after the other."""
    payloads = []
    for vector in vectors:
        count = params.words(len(vector))
        padded = np.zeros(count * params.rows, dtype=np.int64)
        padded[:len(vector)] = vector
        for index, word in enumerate(padded.reshape(count, params.rows).tolist()):
            payloads.append(params.word_layout.const(
                {"y": word, "last": index == count - 1}).as_value().value)
    return payloads


def fields(layout, payload: int) -> dict:
    """Return the fields of a payload as integers and lists of integers."""
    view = layout.from_bits(payload)
    return {name: list(view[name]) if name == "q" else int(view[name]) for name in layout.members}


def check_events(
    params: NormParams, vectors: Sequence[Sequence[np.ndarray]], events: NormEvents,
) -> None:
    """Hold every output of a run to the reference, and the sequences to their order."""
    acts, scales = iter(events.acts), iter(events.scales)
    served = [sequence for _, sequence in events.services]
    places = [iter(of_sequence) for of_sequence in vectors]
    assert len(served) == sum(len(of_sequence) for of_sequence in vectors)
    for sequence in served:
        y = next(places[sequence])
        expected = norm_quant(y, params.profile)
        q: list[int] = []
        chunks = params.chunks(len(y))
        for index in range(chunks):
            _, _, act = next(acts)
            assert act["last"] == (index == chunks - 1)
            assert act.get("sequence", 0) == sequence
            q += act["q"]
        np.testing.assert_array_equal(q[:len(y)], expected["q"])
        assert not any(q[len(y):])
        _, _, scale = next(scales)
        assert scale.pop("sequence", 0) == sequence
        assert scale == {name: int(expected[name][0])
                         for name in ("v", *("mrsn" if params.trace else ()))}
    assert next(acts, None) is None
    assert next(scales, None) is None


def check_cycles(
    params: NormParams, vectors: Sequence[Sequence[np.ndarray]], events: NormEvents,
) -> None:
    """Hold the cycle of every event to the counts of ``params``, pauses and all."""
    arrivals, ends = [], []
    for of_sequence, taken in zip(vectors, events.words, strict=True):
        lasts = np.cumsum([params.words(len(y)) for y in of_sequence]) - 1
        ends.append([taken[last] for last in lasts])
        arrivals.append([end + params.max_steps for end in ends[-1]])
    free, before, chunk = 0, params.sequences - 1, 0
    released: list[list[int]] = [[] for _ in vectors]
    for index, (service, sequence) in enumerate(events.services):
        heads = {place: arrivals[place][len(released[place])] for place in range(len(vectors))
                 if len(released[place]) < len(arrivals[place])}
        expected = max(free, min(heads.values()))
        waiting = [place for place, arrival in heads.items() if arrival <= expected]
        assert service == expected
        assert sequence == (waiting[0] if len(waiting) == 1 else 1 - before)
        before = sequence

        due = service + params.first_chunk_steps
        for _ in range(params.chunks(len(vectors[sequence][len(released[sequence])]))):
            first, taken, _ = events.acts[chunk]
            assert first == due
            due, chunk = taken + 1, chunk + 1
        released[sequence].append(first)
        first, taken, _ = events.scales[index]
        assert first == events.acts[chunk - 1][1] + params.scale_steps
        free = taken + params.idle_steps

    for ready, closed, opened in zip(events.ready, ends, released, strict=True):
        shut = {cycle for start, end in zip(closed, opened, strict=True)
                for cycle in range(start + 1, end)}
        assert ready == [cycle for cycle in range(free - params.idle_steps + 1)
                         if cycle not in shut]
