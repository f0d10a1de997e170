"""Run by cocotb: an AXI4 memory that is not ours, behind our reader.

``AXI_JOB`` names a file: the memory in hexadecimal, the reads, an address from which on the memory
answers with an error, the bytes of a word. What came goes to ``AXI_RESULTS``.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge
from cocotbext.axi import AxiReadBus, AxiSlaveRead, MemoryRegion

BASE = 0x1234_0000


class Memory(MemoryRegion):
    """Contents at their addresses, and an error anywhere else."""

    def __init__(self, contents: dict[int, bytes]) -> None:
        super().__init__(1 << 13)
        self.contents = contents

    async def _read(self, address: int, length: int, **kwargs) -> bytes:
        for base, data in self.contents.items():
            place = address - base
            if 0 <= place <= len(data) - length:
                return data[place:place + length]
        raise ValueError("nothing is here")

    async def read(self, address: int, length: int, **kwargs) -> bytes:
        return await self._read(address, length)


def pauses(seed: int):
    chance = random.Random(seed)
    while True:
        yield chance.random() < 0.3


@cocotb.test()
async def words_come_in_order(dut) -> None:
    job = json.loads(Path(os.environ["AXI_JOB"]).read_text())
    clock = Clock(dut.clk, 10, unit="ns")
    cocotb.start_soon(clock.start())
    bus_clock, bus_reset = dut.clk, dut.rst
    if hasattr(dut, "axi_clk"):
        bus_clock, bus_reset = dut.axi_clk, dut.axi_rst
        cocotb.start_soon(Clock(dut.axi_clk, job["bus_period"], unit="ns").start())
        dut.axi_rst.value = 1
    dut.rst.value = 1
    dut.reads__valid.value = 0
    dut.data__ready.value = 0
    dut.base.value = BASE
    memory = AxiSlaveRead(
        AxiReadBus.from_prefix(dut, "m_axi"), bus_clock, bus_reset,
        target=Memory({BASE: bytes.fromhex(job["memory"])[:job["bad"]]}))
    if job["pauses"]:
        memory.ar_channel.set_pause_generator(pauses(1))
        memory.r_channel.set_pause_generator(pauses(2))
    await ClockCycles(dut.clk, 5)
    bus_reset.value = 0
    dut.rst.value = 0

    async def ask() -> None:
        for address, count in job["reads"]:
            dut.reads__payload.value = address | count << job["count_bits"]
            dut.reads__valid.value = 1
            await RisingEdge(dut.clk)
            while not int(dut.reads__ready.value):
                await RisingEdge(dut.clk)
        dut.reads__valid.value = 0

    cocotb.start_soon(ask())
    words, idle, chance = [], 0, random.Random(3)
    while len(words) < sum(count for _, count in job["reads"]):
        dut.data__ready.value = int(not job["pauses"] or chance.random() < 0.7)
        await RisingEdge(dut.clk)
        idle += 1
        assert idle < 2000, f"{len(words)} words came"
        if int(dut.data__valid.value) and int(dut.data__ready.value):
            words.append(int(dut.data__payload.value))
            idle = 0
    await ClockCycles(dut.clk, 20)
    assert not int(dut.data__valid.value)
    Path(os.environ["AXI_RESULTS"]).write_text(json.dumps({
        "words": [f"{word:x}" for word in words], "failed": int(dut.failed.value)}))
