"""A bench in Amaranth's simulator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from amaranth.hdl import Elaboratable
from amaranth.sim import Simulator

__all__ = ["run_bench"]


def run_bench(dut: Elaboratable, bench: Callable[[Any], Awaitable[None]]) -> None:
    """Simulate a unit with a 1 MHz clock until ``bench``, an Amaranth testbench, ends."""
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
