"""The SDRAM model used to test our controller, driven by an independent controller.

    pip install litedram==2024.12 litex==2024.12 migen==0.10.0
    python benchmarks/sdram_peer.py [--mhz 100]

LiteDRAM's controller and ours write words to the memory of ``sim/core/sdram_model.v``, and read
them in one long span and in many short ones, in Verilator. Prints whether all words were read as
written, the faults reported by the model, and cycles per word.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sterna.cli.terminal.tables import Table
from sterna.hw.emit.verilog import write_verilog
from sterna.hw.memory.sdram import Command, SdramParams
from sterna.hw.testbench.job import Job, Phase
from sterna.sim.bench.runner import Simulator, run_on
from sterna.sim.core.memory import SDRAM_MODEL, SimulatedSdram, sdram_faults, sdram_times

_ADDRESS_BITS = 14
_LONG, _SHORT = 6000, 40    # words of a span
_MODULE = "bench"


def litedram_verilog(params: SdramParams) -> str:
    """Verilog of LiteDRAM's controller and the model, with the ports of ``SimulatedSdram``.

    Between them are the registers of LiteDRAM's GENSDRPHY, and at its ports LiteDRAM's DMA.
    """
    import migen as mg
    from litedram.core.controller import ControllerSettings, LiteDRAMController
    from litedram.core.crossbar import LiteDRAMCrossbar
    from litedram.frontend.dma import LiteDRAMDMAReader, LiteDRAMDMAWriter
    from litedram.modules import SDRModule, _SpeedgradeTimings, _TechnologyTimings
    from litedram.phy.dfi import Interface
    from litedram.phy.gensdrphy import GENSDRPHY
    from litex.gen.fhdl.verilog import convert

    class Memory(SDRModule):
        nbanks, nrows, ncols = 4, 1 << params.row_bits, 1 << params.column_bits
        technology_timings = _TechnologyTimings(
            tREFI=params.refresh_interval, tWTR=(2, None), tCCD=(1, None), tRRD=(None, 15))
        speedgrade_timings = {"default": _SpeedgradeTimings(
            tRP=params.precharge, tRCD=params.row_to_column, tWR=params.write_recovery,
            tRFC=(None, params.refresh), tFAW=None, tRAS=params.row_active)}

    ports = {"reads__valid": 1, "reads__ready": 1, "reads__payload": 2 * _ADDRESS_BITS,
             "writes__valid": 1, "writes__ready": 1, "writes__payload": _ADDRESS_BITS + 16,
             "data__valid": 1, "data__ready": 1, "data__payload": 16,
             "times": 32 * len(params.picoseconds)}
    io = {name: mg.Signal(width, name_override=name) for name, width in ports.items()}
    top = mg.Module()
    top.clock_domains.sys = clock = mg.ClockDomain("sys")
    clock.clk.name_override, clock.rst.name_override = "clk", "rst"
    pads = mg.Record([("a", params.row_bits), ("ba", 2), ("ras_n", 1), ("cas_n", 1), ("we_n", 1),
                      ("dq", 16)])
    settings = GENSDRPHY(pads, params.clock_hz, params.cas_latency).settings
    # On a board the memory clock is ahead; here both share an edge.
    settings.read_latency += 1
    dfi = Interface(params.row_bits, 2, 1, 16)
    p0 = dfi.p0
    dq_o, dq_i, dq_oe, on_their_way, ready, wait, at, left = (
        mg.Signal(width, name=name) for name, width in (
            ("dq_o", 16), ("dq_i", 16), ("dq_oe", 1), ("on_their_way", settings.read_latency),
            ("ready", 1), ("wait_", 32), ("at", _ADDRESS_BITS), ("left", _ADDRESS_BITS)))
    top.sync += [
        pads.a.eq(p0.address), pads.ba.eq(p0.bank), pads.ras_n.eq(p0.ras_n),
        pads.cas_n.eq(p0.cas_n), pads.we_n.eq(p0.we_n), dq_o.eq(p0.wrdata), dq_oe.eq(p0.wrdata_en),
        p0.rddata.eq(dq_i), on_their_way.eq(mg.Cat(p0.rddata_en, on_their_way)),
        p0.rddata_valid.eq(on_their_way[-1])]
    for pin in (pads.ras_n, pads.cas_n, pads.we_n):
        pin.reset.value = 1
    top.specials += mg.Instance(
        "sdram_model", p_WORDS=1 << _ADDRESS_BITS, p_ROW_BITS=params.row_bits,
        p_COLUMN_BITS=params.column_bits, i_clk=mg.ClockSignal(), i_rst=mg.ResetSignal(),
        i_command=mg.Cat(pads.we_n, pads.cas_n, pads.ras_n), i_bank=pads.ba, i_row=pads.a,
        i_dq_o=dq_o, i_dq_oe=dq_oe, o_dq_i=dq_i,
        **{f"i_{name}": io["times"][32 * index:32 * index + 32]
           for index, name in enumerate(params.picoseconds)})

    memory = Memory(params.clock_hz, "1:1")
    top.submodules.controller = controller = mg.ResetInserter()(LiteDRAMController(
        settings, memory.geom_settings, memory.timing_settings, params.clock_hz,
        ControllerSettings(with_auto_precharge=False)))
    top.submodules.crossbar = crossbar = LiteDRAMCrossbar(controller.interface)
    top.comb += controller.reset.eq(~ready)

    # Initialisation that LiteDRAM leaves to software.
    top.submodules.start = start = mg.FSM(reset_state=0)
    steps = [(params.start, Command.PRECHARGE, 1 << 10), (params.precharge, Command.REFRESH, 0),
             *[(params.refresh, Command.REFRESH, 0)] * 7,
             (params.refresh, Command.MODE, params.cas_latency << 4)]
    pins = mg.Cat(p0.we_n, p0.cas_n, p0.ras_n)
    for index, (time, command, row) in enumerate(steps):
        start.act(index, pins.eq(Command.NOTHING.value), mg.NextValue(wait, wait + 1), mg.If(
            wait == params.cycles(time) + 2, pins.eq(command.value), p0.address.eq(row),
            mg.NextValue(wait, 0), mg.NextState(index + 1)))
    start.act(len(steps), pins.eq(Command.NOTHING.value), mg.NextValue(wait, wait + 1),
              mg.If(wait == 4, mg.NextState("ready")))
    start.act("ready", ready.eq(1), controller.dfi.connect(dfi))

    reader = LiteDRAMDMAReader(crossbar.get_port(mode="read"), fifo_depth=16)
    writer = LiteDRAMDMAWriter(crossbar.get_port(mode="write"), fifo_depth=16)
    top.submodules += reader, writer
    top.comb += [
        io["reads__ready"].eq(ready & (left == 0)),
        reader.sink.valid.eq(left != 0), reader.sink.address.eq(at),
        writer.sink.valid.eq(io["writes__valid"] & ready),
        io["writes__ready"].eq(writer.sink.ready & ready),
        writer.sink.address.eq(io["writes__payload"][:_ADDRESS_BITS]),
        writer.sink.data.eq(io["writes__payload"][_ADDRESS_BITS:]),
        io["data__valid"].eq(reader.source.valid), io["data__payload"].eq(reader.source.data),
        reader.source.ready.eq(io["data__ready"])]
    top.sync += [
        mg.If(reader.sink.valid & reader.sink.ready, at.eq(at + 1), left.eq(left - 1)),
        mg.If(io["reads__valid"] & io["reads__ready"],
              at.eq(io["reads__payload"][:_ADDRESS_BITS]),
              left.eq(io["reads__payload"][_ADDRESS_BITS:]))]
    return str(convert(top, {clock.clk, clock.rst, *io.values()}, name=_MODULE))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a word is wrong, or the model reports a fault of our controller.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mhz", type=int, default=100, help="clock of controller and memory")
    options = parser.parse_args(arguments)
    params = replace(SdramParams(options.mhz * 1_000_000), start=2_000.0)
    rows: list[tuple[Any, ...]] = []
    with tempfile.TemporaryDirectory(prefix="sterna-litedram-") as name:
        for who in ("ours", "LiteDRAM"):
            work = Path(name) / who
            work.mkdir()
            if who == "ours":
                bench = write_verilog(SimulatedSdram(
                    params, _ADDRESS_BITS, words=1 << _ADDRESS_BITS), _MODULE, work)
            else:
                bench = work / f"{_MODULE}.v"
                bench.write_text(litedram_verilog(params), encoding="utf-8")
            rows.append((who, *measure(params, bench, work)))
    Table(f"an SDRAM of 16 bits at {options.mhz} MHz",
          ("controller", "words as written", "faults", "first of them",
           f"cycles a word, {_LONG:,} in a row", f"{_SHORT} in a row"), rows).print()
    return int(not all(row[1] for row in rows) or rows[0][2] > 0)


def measure(params: SdramParams, bench: Path, work: Path) -> tuple[Any, ...]:
    """Write and read through a controller; the columns of the table."""
    rng = np.random.default_rng(1)
    words = rng.integers(0, 1 << 16, size=_LONG).tolist()
    starts = rng.integers(0, _LONG - _SHORT, size=100).tolist()
    phases = [
        Phase("write", {"writes": [at | word << _ADDRESS_BITS for at, word in enumerate(words)]},
              {}, reset=True, random_pauses=False, levels={"times": sdram_times(params)}),
        Phase("long", {"reads": [_LONG << _ADDRESS_BITS]}, {"data": _LONG}, random_pauses=False),
        Phase("short", {"reads": [at | _SHORT << _ADDRESS_BITS for at in starts]},
              {"data": _SHORT * len(starts)}, random_pauses=False)]
    _, long, short = run_on(Simulator.VERILATOR, [bench, SDRAM_MODEL], _MODULE, Job(
        ["reads", "writes"], ["data"], 1, phases, ["times"], patience=3000), work / "run")
    right = long.outputs["data"] == words and short.outputs["data"] == [
        words[at + offset] for at in starts for offset in range(_SHORT)]
    faults = sdram_faults(work / "run" / "simulation.log")[-1]
    return (right, len(faults), faults[0] if faults else "", *(
        f"{(taken[-1] - taken[0]) / (len(taken) - 1):.3f}"
        for taken in (each.taken_at["data"] for each in (long, short))))


if __name__ == "__main__":
    sys.exit(main())
