"""The monitor of a trace port, in a simulator that knows unknown values."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cocotb.types import LogicArray

from sterna.hw.testbench.job import MonitoredBits
from sterna.sim.bench.cocotb_bench import PortMonitor


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
