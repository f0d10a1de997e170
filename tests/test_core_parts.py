"""Parts of the core on their own: queues, scales, control of tokens, the monitor of its trace."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from cocotb.types import LogicArray
from hypothesis import given
from hypothesis import strategies as st
from stream_bench import Pauses, run_stream

from sterna.hw.core.queues import BypassFifo, TaskQueue
from sterna.hw.oldcore.control import TokenControl
from sterna.hw.oldcore.plan.core_params import CoreParams
from sterna.hw.oldcore.post_processor import ScaleUnit
from sterna.hw.testbench.amaranth import run_bench
from sterna.hw.testbench.job import MonitoredBits
from sterna.model.config import ModelConfig
from sterna.model.profile import NumericProfile
from sterna.model.quantized.integer import combine_scale
from sterna.sim.bench.cocotb_bench import PortMonitor

NANO = ModelConfig.named("nano")


@pytest.mark.parametrize("depth", [1, 2, 7])
@pytest.mark.parametrize("pauses", [
    Pauses(), Pauses(driver=0.4, seed=1), Pauses(sink=0.6, seed=2),
    Pauses(driver=0.3, sink=0.3, seed=3)])
def test_the_queue_keeps_the_order(depth: int, pauses: Pauses) -> None:
    queue = BypassFifo(8, depth=depth)
    payloads = [(7 * i) % 256 for i in range(200)]
    run = run_stream(queue, queue.incoming, queue.outgoing, payloads, 200, pauses=pauses,
                     max_cycles=2000)
    assert run.results == payloads
    if pauses.sink == 0:
        assert run.taken_at == run.sent_at      # it costs no cycle while it is empty


def test_the_queue_takes_as_many_as_it_is_deep() -> None:
    queue = BypassFifo(4, depth=3)
    taken = []

    async def bench(ctx):
        ctx.set(queue.incoming.valid, 1)
        for _ in range(6):
            taken.append(ctx.get(queue.incoming.ready))
            await ctx.tick()

    run_bench(queue, bench)
    assert taken == [1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("depth", [1, 2, 3])
@given(data=st.data())
def test_the_queue_of_tasks_is_a_list(depth, data):
    patterns = data.draw(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
    dut = TaskQueue(8, depth=depth)
    held: list[int] = []

    async def testbench(ctx):
        for number, (wants_put, ready) in enumerate(patterns, start=1):
            put = wants_put and len(held) < depth
            ctx.set(dut.put, put)
            ctx.set(dut.payload, number)
            ctx.set(dut.head.ready, ready)
            assert ctx.get(dut.head.valid) == bool(held)
            if held:
                assert ctx.get(dut.head.payload) == held[0]
            if ready and held:
                held.pop(0)
            if put:
                held.append(number)
            await ctx.tick()

    run_bench(dut, testbench)


@pytest.mark.parametrize("sequences", [1, 2])
def test_scales_are_those_of_the_reference(profile: NumericProfile, sequences: int) -> None:
    params = CoreParams(NANO, profile, cols=64, sequences=sequences)
    unit = ScaleUnit(params)
    rng = np.random.default_rng(sequences)
    top = (1 << profile.mantissa_bits) - 1
    cases = [(profile.norm_scale_max, [top, top, top]), (1, [1 << (profile.mantissa_bits - 1)] * 3)]
    cases += [(int(rng.integers(1, profile.norm_scale_max + 1)),
               rng.integers(1 << (profile.mantissa_bits - 1), top + 1, 3).tolist())
              for _ in range(40)]

    async def bench(ctx):
        for index, (v, mantissas) in enumerate(cases):
            sequence = index % sequences
            payload = {"v": v, **({"sequence": sequence} if sequences > 1 else {})}
            ctx.set(unit.mantissas[sequence], mantissas)
            ctx.set(unit.clear, 1)
            ctx.set(unit.clear_sequence, sequence)
            await ctx.tick()
            ctx.set(unit.clear, 0)
            assert not ctx.get(unit.known[sequence])
            await ctx.tick()
            ctx.set(unit.norms.payload, payload)
            ctx.set(unit.norms.valid, 1)
            expected = [int(combine_scale(np.int64(v), k, profile)) for k in mantissas]
            for cycle in range(unit.latency + 3):
                if cycle <= ScaleUnit.hold:
                    assert ctx.get(unit.norms.ready) == (cycle == ScaleUnit.hold)
                else:
                    ctx.set(unit.norms.valid, 0)
                slot = cycle - unit.latency     # one a cycle
                assert ctx.get(unit.known[sequence]) == (slot >= 0)
                if slot >= 0:
                    assert ctx.get(unit.scales[sequence][slot]) == expected[slot]
                await ctx.tick()

    run_bench(unit, bench)


def test_control_of_tokens(profile: NumericProfile) -> None:
    control = TokenControl(CoreParams(NANO, profile, cols=64))
    asked: list[tuple[int, int]] = []
    written: list[tuple[int, int]] = []

    async def ask(ctx, token: int, *, start: int = 0, predict: int = 0) -> None:
        """Send a token of a prompt and see it asked for."""
        ctx.set(control.prompts.payload, {"token": token, "start": start, "predict": predict})
        ctx.set(control.prompts.valid, 1)
        assert ctx.get(control.prompts.ready)
        assert ctx.get(control.reseed) == start
        await ctx.tick()
        ctx.set(control.prompts.valid, 0)
        await embed(ctx)

    async def embed(ctx) -> None:
        assert ctx.get(control.busy)
        assert ctx.get(control.requests.valid)
        asked.append((ctx.get(control.requests.payload), ctx.get(control.start)))
        ctx.set(control.requests.ready, 1)
        await ctx.tick()
        ctx.set(control.requests.ready, 0)

    async def pulse(ctx, signal) -> None:
        ctx.set(signal, 1)
        await ctx.tick()
        ctx.set(signal, 0)

    async def choose(ctx, token: int) -> None:
        ctx.set(control.sampled.payload, token)
        ctx.set(control.sampled.valid, 1)
        assert ctx.get(control.sampled.ready)
        await ctx.tick()
        ctx.set(control.sampled.valid, 0)
        assert ctx.get(control.tokens.valid)
        written.append((ctx.get(control.tokens.payload.token),
                        ctx.get(control.tokens.payload.last)))
        await pulse(ctx, control.tokens.ready)
        assert not ctx.get(control.tokens.valid)

    async def bench(ctx):
        ctx.set(control.control.limit, 3)
        assert not ctx.get(control.prompts.ready)       # go is low
        ctx.set(control.go, 1)
        await ask(ctx, 5, start=1)
        assert not ctx.get(control.prompts.ready)
        await pulse(ctx, control.vector_done)
        assert not ctx.get(control.busy)
        await ask(ctx, 6, predict=1)
        await pulse(ctx, control.vector_done)           # of no meaning: logits are awaited
        assert ctx.get(control.busy)
        for token in (10, 11):
            await pulse(ctx, control.logits_done)       # a token is to be chosen after them
            await choose(ctx, token)
            await embed(ctx)
        await choose(ctx, 12)
        assert not ctx.get(control.busy)

        ctx.set(control.control.stop, 1)
        ctx.set(control.control.stop_token, 0)
        await ask(ctx, 7, predict=1)
        await choose(ctx, 0)
        assert not ctx.get(control.busy)

        ctx.set(control.control.limit, 0)               # logits only
        await ask(ctx, 8, start=1, predict=1)
        assert not ctx.get(control.generate)
        await pulse(ctx, control.logits_done)
        assert not ctx.get(control.busy)

    run_bench(control, bench)
    assert asked == [(5, 1), (6, 0), (10, 0), (11, 0), (7, 0), (8, 1)]
    assert written == [(10, 0), (11, 0), (12, 1), (0, 1)]


def test_a_chosen_token_waits_until_the_one_before_is_taken(profile: NumericProfile) -> None:
    control = TokenControl(CoreParams(NANO, profile, cols=64))

    async def bench(ctx):
        ctx.set(control.go, 1)
        ctx.set(control.control.limit, 9)
        ctx.set(control.requests.ready, 1)
        ctx.set(control.sampled.valid, 1)
        ctx.set(control.sampled.payload, 4)
        ctx.set(control.prompts.valid, 1)
        ctx.set(control.prompts.payload, {"token": 1, "start": 1, "predict": 1})
        for _ in range(8):
            await ctx.tick()
        # The first token waits; the second is chosen, and waits for it.
        assert ctx.get(control.tokens.valid)
        assert not ctx.get(control.sampled.ready)
        ctx.set(control.tokens.ready, 1)
        assert ctx.get(control.sampled.ready)

    run_bench(control, bench)


def monitored(*values: str) -> PortMonitor:
    """A monitor of two fields of three bits, the lowest says whether the others count."""
    port = SimpleNamespace(value=LogicArray("000000"))
    monitor = PortMonitor(
        SimpleNamespace(taps=port), "taps",
        [MonitoredBits("low", "taps", 0, 3), MonitoredBits("high", "taps", 3, 3)])
    for cycle, value in enumerate(values):
        port.value = LogicArray(value)
        monitor.sample(cycle)
    return monitor


def test_fields_that_are_not_valid_may_be_unknown():
    monitor = monitored("XX0011", "0000Z0", "101XX0", "111111")
    assert monitor.seen == {"low": [0b011, 0b111], "high": [0b101, 0b111]}
    assert monitor.seen_at == {"low": [0, 3], "high": [2, 3]}


@pytest.mark.parametrize("value", ["0000X1", "X01000", "00000X", "00X000"])
def test_unknown_bits_of_a_valid_field_are_an_error(value):
    with pytest.raises(AssertionError, match="unknown bits in cycle 1"):
        monitored("000000", value)
