"""Run by cocotb: a driver of registers, on buses whose masters are not ours.

``REGISTERS_JOB`` names a file: the map in C, and of a core images by their address in memory, and
rounds; of a network the words of its frames. What came goes to ``REGISTERS_RESULTS``.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import cocotb
from axi_bench import Memory, pauses
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge, with_timeout
from cocotbext.axi import AxiLiteBus, AxiLiteMaster, AxiReadBus, AxiSlaveRead
from cocotbext.wishbone.driver import WBOp, WishboneMaster

_OKAY, _ERROR = 0, 2


class AxiRegisters:
    """The registers on AXI4-Lite."""

    def __init__(self, dut) -> None:
        self._bus = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axi"), dut.clk, dut.rst)
        for index, channel in enumerate((
                self._bus.write_if.aw_channel, self._bus.write_if.w_channel,
                self._bus.write_if.b_channel, self._bus.read_if.ar_channel,
                self._bus.read_if.r_channel)):
            channel.set_pause_generator(pauses(index))

    async def read(self, address: int) -> tuple[int, bool]:
        found = await self._bus.read(address, 4)
        assert found.resp in (_OKAY, _ERROR)
        return int.from_bytes(found.data, "little"), found.resp == _OKAY

    async def write(self, address: int, value: int, size: int = 4) -> bool:
        found = await self._bus.write(address, value.to_bytes(size, "little"))
        assert found.resp in (_OKAY, _ERROR)
        return found.resp == _OKAY


class WishboneRegisters:
    """The registers on Wishbone."""

    def __init__(self, dut) -> None:
        names = ("cyc", "stb", "we", "adr", "sel", "ack", "err")
        self._bus = WishboneMaster(dut, "wb", dut.clk, timeout=50, signals_dict={
            **{name: name for name in names}, "datwr": "dat_w", "datrd": "dat_r"})

    async def _cycle(self, operation: WBOp):
        found, = await self._bus.send_cycle([operation])
        assert found.ack in (1, 2)
        return found

    async def read(self, address: int) -> tuple[int, bool]:
        found = await self._cycle(WBOp(address // 4))
        return int(found.datrd), found.ack == 1

    async def write(self, address: int, value: int, size: int = 4) -> bool:
        found = await self._cycle(WBOp(address // 4, value, sel=(1 << size) - 1))
        return found.ack == 1


class Driver:
    """What a host does with the registers, by the names in the map."""

    def __init__(self, dut, registers, header: str) -> None:
        self.dut, self.registers = dut, registers
        self.at = {name: int(value, 0) for name, value in re.findall(
            r"#define STERNA_(\w+) (\w+?)u\b", header)}

    async def get(self, name: str) -> int:
        value, whole = await self.registers.read(self.at[name])
        assert whole, name
        return value

    async def put(self, name: str, value: int = 0) -> None:
        assert await self.registers.write(self.at[name], value), name

    async def event(self, name: str) -> bool:
        return bool(await self.get("EVENTS") & self.at[f"EVENT_{name}"])

    async def until(self, *names: str) -> int:
        """Wait for an interrupt; return the events."""
        await self.put("ENABLE", sum(self.at[f"EVENT_{name}"] for name in names))
        await ClockCycles(self.dut.clk, 2)
        if not int(self.dut.irq.value):
            await with_timeout(RisingEdge(self.dut.irq), 50, "us")
        return await self.get("EVENTS")

    async def send(self, prefix: str = "PROMPT", **fields: int) -> None:
        for name, value in fields.items():
            await self.put(f"{prefix}_{name.upper()}", value & 0xFFFF_FFFF)
        await self.put(f"{prefix}_SEND")

    async def refused(self, name: str, value: int, register: str = "PROMPT_SEND") -> bool:
        """Whether something was refused, once: it is cleared."""
        before = await self.event("REFUSED")
        if name:
            await self.put(name, value)
        await self.put(register)
        after = await self.event("REFUSED")
        await self.put("EVENTS", self.at["EVENT_REFUSED"])
        return not before and after and not await self.event("REFUSED")

    async def start(self, base: int | None) -> int:
        """Restart the core, with the image at an address; return its status."""
        runs = self.at.get("CONTROL_LOGITS", 0)
        await self.put("CONTROL", self.at["CONTROL_RESET"])
        assert not await self.event("CAN_SEND")
        if base is None:
            await self.put("CONTROL", runs)
            return 1
        await self.put("BASE_LOW", base & 0xFFFF_FFFF)
        await self.put("BASE_HIGH", base >> 32)
        await self.put("CONTROL", runs)
        for _ in range(2000):
            if status := await self.get("STATUS"):
                return status
        raise AssertionError("the image is not read")

    async def write_text(self, requests, words: int) -> dict[str, list]:
        """Send a prompt for each sequence, take all tokens and all logits."""
        prompts = [
            {"token": token, "start": int(place == 0), "limit": request["limit"],
             "predict": int(place == len(request["prompt"]) - 1),
             **{name: request[name] for name in ("sequence", "beta", "seed")}}
            for request in requests for place, token in enumerate(request["prompt"])]
        left = sum(request["limit"] for request in requests)
        tokens: list[list[int]] = []
        logits: list[list[int]] = []
        names = [name for name in self.at if re.match(r"LOGITS_(SEQ|LAST|LOGITS)", name)]
        while len(tokens) < left or len(logits) < left * words:
            events = await self.until("TOKEN", "LOGITS", *["CAN_SEND"] * bool(prompts))
            if prompts and events & self.at["EVENT_CAN_SEND"]:
                await self.send(**prompts.pop(0))
            if events & self.at["EVENT_LOGITS"]:
                logits.append([await self.get(name) for name in names])
                await self.put("LOGITS_TAKE")
            if events & self.at["EVENT_TOKEN"]:
                tokens.append([await self.get(f"TOKEN_{name}")
                               for name in ("SEQUENCE", "TOKEN", "LAST")])
                await self.put("TOKEN_TAKE")
        return {"tokens": tokens, "logits": logits}


async def drive_network(host: Driver, job: dict) -> dict:
    """Send words of frames and take words of results; what is out of range is refused."""
    assert await host.refused("", 0, "FRAME_SEND"), "it is in reset"
    assert await host.start(job["base"]) == 1
    for name, value in (("FRAME_X_0", 1 << 15), ("FRAME_X_0", (-1 << 15) - 1 & 0xFFFF_FFFF)):
        assert await host.refused(name, value, "FRAME_SEND"), value
    assert await host.refused("", 0, "RESULT_TAKE")
    words, results = list(job["frames"]), []
    names = [name for name in host.at if re.match(r"RESULT_(Y|LAST)", name)]
    while len(results) < job["results"]:
        events = await host.until("RESULT", *["CAN_SEND"] * bool(words))
        if words and events & host.at["EVENT_CAN_SEND"]:
            await host.send("FRAME", **words.pop(0))
        if events & host.at["EVENT_RESULT"]:
            results.append([await host.get(name) for name in names])
            await host.put("RESULT_TAKE")
    return {"results": results}


@cocotb.test()
async def a_host_drives_the_registers(dut) -> None:
    job = json.loads(Path(os.environ["REGISTERS_JOB"]).read_text())
    cocotb.start_soon(Clock(dut.clk, 10, unit="ns").start())
    dut.rst.value = 1
    registers = (AxiRegisters if hasattr(dut, "s_axi_awaddr") else WishboneRegisters)(dut)
    host = Driver(dut, registers, job["header"])
    if job.get("images"):
        memory = AxiSlaveRead(AxiReadBus.from_prefix(dut, "m_axi"), dut.clk, dut.rst, target=Memory(
            {int(base): bytes.fromhex(image) for base, image in job["images"].items()}))
        memory.r_channel.set_pause_generator(pauses(9))
    await ClockCycles(dut.clk, 5)
    dut.rst.value = 0
    await ClockCycles(dut.clk, 5)

    at = host.at
    sent = "FRAME_X_0" if "frames" in job else "PROMPT_TOKEN"
    assert (await host.get("MAGIC")).to_bytes(4, "little") == b"STRN"
    for address in (max(at[name] for name in at if name.endswith("_TAKE")) + 4, 0xFFC,
                    at[sent]):
        assert await registers.read(address) == (0, False)
    assert not await registers.write(at["MAGIC"], 0)
    assert not await registers.write(0xFFC, 0)
    assert not await registers.write(at["ENABLE"], 1, size=2)
    assert await host.get("ENABLE") == 0

    found = await (drive_network if "frames" in job else drive_core)(host, job)
    Path(os.environ["REGISTERS_RESULTS"]).write_text(json.dumps(found))


async def drive_core(host: Driver, job: dict) -> dict:
    """Run its rounds; what is out of range is refused."""
    dut = host.dut
    found: dict = {"sequences": await host.get("SEQUENCES"), "rounds": []}
    if job["images"]:
        found["digest"] = await host.get("DIGEST")
        assert await host.refused("PROMPT_TOKEN", 0), "it is in reset"
    for each in job["rounds"]:
        status = await host.start(each["base"])
        if status != 1:
            await host.until("STOPPED")
            found["rounds"].append(status)
            continue
        await host.until("CAN_SEND")
        await host.put("ENABLE", 0)
        await ClockCycles(dut.clk, 2)
        assert not int(dut.irq.value)
        for name in ("TOKEN_TAKE", "LOGITS_TAKE"):
            assert await host.refused("", 0, name)
        for name, value in (("PROMPT_SEQUENCE", job["sequences"]), ("PROMPT_TOKEN", job["vocab"]),
                            ("PROMPT_TOKEN", 1 << 20), ("PROMPT_LIMIT", 1 << 16)):
            assert await host.refused(name, value), name
            await host.put(name, 0)
        if each["cut"]:     # a restart while it computes, and while words are on their way
            await host.send(sequence=0, token=1, start=1, predict=1, limit=9)
            await ClockCycles(dut.clk, each["cut"])
            assert await host.start(each["base"]) == 1
        found["rounds"].append(await host.write_text(each["requests"], each["words"]))
    return found
