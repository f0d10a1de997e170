# amaranth: UnusedElaboratable=no
"""The queue of tasks against a list, with every pattern of puts and takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.hw.core.queues import TaskQueue
from sterna.hw.testbench.amaranth import run_bench


@pytest.mark.parametrize("depth", [1, 2, 3])
@given(data=st.data())
def test_it_is_a_list(depth, data):
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


def test_a_queue_of_nothing_is_refused():
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        TaskQueue(8, depth=0)
