"""Memories behind the port of a core, for simulation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.hdl import Cat, ClockSignal, Instance, Module, ResetSignal, Signal, Value, unsigned
from amaranth.lib import fifo, memory, stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.image.reader import read_layout
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.emit.verilog import write_verilog
from sterna.hw.memory.sdram import SdramController, SdramParams

__all__ = [
    "SDRAM_MODEL", "ImageMemory", "SimulatedSdram", "behind_memory", "sdram_faults", "sdram_times"]

SDRAM_MODEL = Path(__file__).with_name("sdram_model.v")
"""Additional Verilog for the simulation of :class:`SimulatedSdram`."""

_STREAMS = ("reads", "data")


def behind_memory(emitted: EmittedUnit, memory: wiring.Component, folder: Path) -> EmittedUnit:
    """Combine an emitted core and the memory behind its port in one unit, written to ``folder``.

    The unit has the core's ports except those of the memory, and ``pauses`` if the memory has it.

    Parameters
    ----------
    memory
        A component with the streams ``reads`` and ``data``, and optionally ``sources``: Verilog
        files that it needs.
    """
    unit = _CoreAndMemory(emitted, memory)
    folder.mkdir(parents=True, exist_ok=True)
    verilog = write_verilog(unit, "core_and_memory", folder)
    sources = [*emitted.sources, *getattr(memory, "sources", ()), verilog]
    streams = emitted.manifest["payloads"]
    return replace(
        emitted, folder=folder, module=verilog.stem,
        manifest={**emitted.manifest, "module": verilog.stem, "ports": unit.ports,
                  "payloads": {each: streams[each] for each in streams if each not in _STREAMS}},
        texts={"filelist.f": "".join(f"{path.absolute()}\n" for path in sources)})


class _CoreAndMemory(wiring.Component):
    """An emitted core and a memory; ``ports`` are in the format of a manifest."""

    def __init__(self, emitted: EmittedUnit, memory: wiring.Component) -> None:
        self._core, self._memory = emitted, memory
        self.ports: list[dict[str, Any]] = [
            port for port in emitted.manifest["ports"]
            if port["name"].partition("__")[0] not in (*_STREAMS, "failed", "status")]
        if "pauses" in memory.signature.members:
            self.ports.append({"name": "pauses", "direction": "input", "width": 1})
        super().__init__({
            port["name"]: (In if port["direction"] == "input" else Out)(port["width"])
            for port in self.ports if port["name"] not in ("clk", "rst")})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.memory = memory = self._memory
        core = {"i_clk": ClockSignal(), "i_rst": ResetSignal(), "i_failed": 0}
        for port in self._core.manifest["ports"]:
            stream, _, part = port["name"].partition("__")
            if stream in _STREAMS:
                end = Value.cast(getattr(getattr(memory, stream), part))
            elif port["name"] in self.signature.members:
                end = getattr(self, port["name"])
            else:
                continue
            core[f"{port['direction'][0]}_{port['name']}"] = end
        m.submodules.core = Instance(self._core.module, **core)
        if "pauses" in self.signature.members:
            m.d.comb += memory.pauses.eq(self.pauses)
        return m


class ImageMemory(wiring.Component):
    """A memory behind the port of a core that answers requests in order, each after ``latency``
    cycles.

    Members
    -------
    reads : ``In(stream.Signature(read_layout(params)))``
    data : ``Out(stream.Signature(params.port_bits))``
    pauses : ``In(1)``
        While high, words are delayed by random pauses.
    """

    def __init__(self, params: CoreParams, image: bytes, *, latency: int = 20) -> None:
        self.params = params
        self._words = np.frombuffer(image, dtype=np.uint8).reshape(-1, params.port_bits // 8)
        self._latency = latency
        super().__init__({
            "reads": In(stream.Signature(read_layout(params))),
            "data": Out(stream.Signature(params.port_bits)),
            "pauses": In(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        params, reads, data = self.params, self.reads, self.data
        time = Signal(32)
        random = Signal(31, init=1)
        m.d.sync += [time.eq(time + 1), random.eq(Cat(random[27] ^ random[30], random))]
        layout = StructLayout({"read": read_layout(params), "time": 32})
        m.submodules.asked = asked = fifo.SyncFIFO(width=layout.size, depth=8)
        coming, first = Signal(layout), layout(asked.r_data)
        m.d.comb += [
            coming.read.eq(reads.payload), coming.time.eq(time), asked.w_data.eq(coming),
            asked.w_en.eq(reads.valid), reads.ready.eq(asked.w_rdy),
        ]
        m.submodules.words = words = memory.Memory(
            shape=unsigned(params.port_bits), depth=len(self._words),
            init=[int.from_bytes(word.tobytes(), "little") for word in self._words])
        read = words.read_port(domain="comb")
        place, offers = Signal(params.address_bits), Signal()
        ready = asked.r_rdy & ((time - first.time)[:32] >= self._latency)
        m.d.comb += [
            read.addr.eq(first.read.address + place), data.payload.eq(read.data),
            data.valid.eq(ready & (offers | ~self.pauses)),
        ]
        m.d.sync += offers.eq((random[0] & random[5]) | (offers & ~data.ready))
        with m.If(data.valid & data.ready):
            m.d.sync += place.eq(place + 1)
            with m.If(place + 1 == first.read.count):
                m.d.comb += asked.r_en.eq(1)
                m.d.sync += place.eq(0)
        return m


class SimulatedSdram(wiring.Component):
    """A controller and a memory of ``words`` words, which logs violations by the controller in
    lines with ``sdram_model``.

    ``contents`` is the path of a file of hexadecimal words, relative to the working folder of the
    simulation.

    Members
    -------
    reads, data, writes
        Of :class:`~sterna.hw.memory.sdram.SdramController`.
    times : ``In``
        Timing of the memory, see :func:`sdram_times`.
    """

    def __init__(
        self, params: SdramParams, address_bits: int, *, words: int, contents: str = "",
    ) -> None:
        self.controller = SdramController(params, address_bits)
        self.sources = (SDRAM_MODEL,)
        self._words, self._contents = words, contents
        members = self.controller.signature.members
        super().__init__({
            "times": In(32 * len(params.picoseconds), init=sdram_times(params)),
            **{name: members[name] for name in ("reads", "data", "writes")}})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.controller = controller = self.controller
        params = controller.params
        times = {f"i_{name}": self.times.word_select(index, 32)
                 for index, name in enumerate(params.picoseconds)}
        m.submodules.model = Instance(
            "sdram_model", p_CONTENTS=self._contents, p_WORDS=self._words,
            p_ROW_BITS=params.row_bits, p_COLUMN_BITS=params.column_bits,
            i_clk=ClockSignal(), i_rst=ResetSignal(), **times,
            i_command=controller.command, i_bank=controller.bank,
            i_row=controller.row, i_dq_o=controller.dq_o, i_dq_oe=controller.dq_oe,
            o_dq_i=controller.dq_i)
        for name in ("reads", "data", "writes"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(controller, name))
        return m


def sdram_times(params: SdramParams) -> int:
    """The clock period and the timing of a memory in ps, 32 bits each."""
    return sum(value << 32 * index for index, value in enumerate(params.picoseconds.values()))


def sdram_faults(log: Path) -> list[list[str]]:
    """Violations reported by the memory model in the log of a simulation: a list per power-up."""
    faults: list[list[str]] = [[]]
    was_off = False
    for line in log.read_text(encoding="utf-8").splitlines():
        if "sdram_model: " not in line:
            continue
        is_off = line.endswith(": off")
        if not is_off:
            faults[-1].append(line.partition("sdram_model: ")[2])
        elif not was_off:
            faults.append([])
        was_off = is_off
    return faults
