"""Parts of the core on their own: queues, and the monitor of its trace."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from amaranth.hdl import Module, Signal
from cocotb.types import LogicArray
from hypothesis import given
from hypothesis import strategies as st
from stream_bench import Pauses, run_stream

from sterna.hw.core.compute.queues import BypassFifo, TaskQueue, has_room
from sterna.hw.testbench.amaranth import run_bench
from sterna.hw.testbench.job import MonitoredBits
from sterna.model.config import ModelConfig
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


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
@given(data=st.data())
def test_room_is_known_in_time(depth, data):
    patterns = data.draw(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
    module, reserved, freed, free = Module(), Signal(), Signal(), Signal()
    module.d.comb += free.eq(has_room(module, depth, reserved, freed))
    kept = 0

    async def bench(ctx):
        nonlocal kept
        for wants, goes in patterns:
            assert ctx.get(free) == (kept < depth)
            comes, goes = wants and kept < depth, goes and kept > 0
            ctx.set(reserved, comes)
            ctx.set(freed, goes)
            kept += comes - goes
            await ctx.tick()

    run_bench(module, bench)


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
