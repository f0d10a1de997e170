"""Tokens per second of a model of 370 million parameters with weights in four channels of DDR4.

By the exact cycle model of the core, with a memory that delivers a port word every cycle after a
latency; an estimate, since no such core was built. ``--clock`` and ``--port-bits`` set the
bandwidth: 250 MHz and 2,048 bits are 64 GB/s, as of four channels of DDR4-2400 at 83 %.
``--area`` has Yosys map one of the clusters, its weights' ring and activations included, to Xilinx
7 series, in some minutes.
"""

from __future__ import annotations

import argparse

from sterna.cli.terminal.tables import Table
from sterna.hw.core.compute.products import Cluster
from sterna.hw.core.compute.request import Request
from sterna.hw.core.cycles.model import MemoryTiming, run_cycles
from sterna.hw.core.cycles.report import shape_stages
from sterna.hw.core.image.program import ProgramImage, place_stages
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.core.params.limits import Limits
from sterna.hw.emit.verilog import verilog_files
from sterna.hw.flow.cached_tools import CachedTools
from sterna.hw.fpga.families import target_named
from sterna.hw.fpga.family import Area
from sterna.model.cache import user_cache
from sterna.model.config import ModelConfig
from sterna.model.profile import S16

CONFIG = ModelConfig(d=1024, layers=24, dff=2816, vocab=32000)
TOKENS = 3


def cluster_area(params: CoreParams) -> Area:
    """The area of a cluster that follows another one."""
    cluster = Cluster(ProgramImage(params, [], [], [0]), 1)
    tools = CachedTools(target_named("xc7"), user_cache("synthesis"), lambda text, step: None)
    return tools.map(verilog_files(cluster, "cluster"), "cluster").synthesis.area


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 4, 8, 16])
    for name, default in (("rows", 16), ("cols", 1024), ("clusters", 8), ("post-lanes", 16),
                          ("cell-lanes", 16), ("quant-lanes", 128), ("port-bits", 2048)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--latency", type=int, default=60, help="cycles to the first word")
    parser.add_argument("--clock", type=float, default=250.0, help="MHz")
    parser.add_argument("--area", action="store_true",
                        help="of one cluster and of all, at the last of --sequences")
    options = vars(parser.parse_args())
    clock, memory = 1e6 * options.pop("clock"), MemoryTiming(options.pop("latency"), requests=64)
    wants_area = options.pop("area")
    plans = shape_stages(CONFIG, S16)
    limits = Limits.of_stages(S16, [plans], (12, 20), 16)
    rows = []
    for sequences in options.pop("sequences"):
        params = CoreParams(limits, sequences=sequences, **options)
        asked = [(number, Request((0,), tokens=TOKENS)) for number in range(sequences)]
        tokens = run_cycles(params, plans, asked, memory).tokens[0]
        cycles = tokens[-1] - tokens[-2]
        stages = place_stages(plans, params)
        beats = sequences * sum(stage.words for stage in stages)
        words = sequences * params.row_parts(CONFIG.d) + sum(
            stage.words * params.weight_parts
            + stage.headers * params.row_beats * params.header_parts for stage in stages)
        rows.append((sequences, cycles, f"{beats / cycles:.1%}", f"{words / cycles:.1%}",
                     round(clock / cycles), round(sequences * clock / cycles)))
    Table(None, ("sequences", "cycles", "array busy", "port busy", "tokens/s each", "in total"),
          rows).print()
    if wants_area:
        area = cluster_area(params)
        Table(None, ("clusters", "LUT", "flip-flops", "block RAM of 18 kbit"), [
            (count, *(count * each for each in (area.lut, area.ff, area.block_ram)))
            for count in (1, params.clusters)]).print()


if __name__ == "__main__":
    main()
