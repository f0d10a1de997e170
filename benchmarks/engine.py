"""Cycles, area and clock of the core for a bundled model.

With ``--cycles`` it prints the cycles of a token for each number of sequences, by the cycle model.
Otherwise Yosys synthesises the core for an ECP5 and nextpnr packs it; with ``--seeds`` nextpnr
places and routes it once for each. What both give is kept in Sterna's cache.
"""

from __future__ import annotations

import argparse
import statistics

from sterna.hw.core.core import Core
from sterna.hw.core.core_image import build_image
from sterna.hw.core.core_params import CoreParams, Limits
from sterna.hw.core.cycle_model import cycles_per_token
from sterna.hw.emit.verilog import verilog_files
from sterna.hw.flow.cached_tools import CachedTools
from sterna.hw.flow.synth_report import BlockArea
from sterna.hw.flow.target import target_named
from sterna.model.cache import user_cache
from sterna.model.quantized import load_model
from sterna.model.quantized.bundled import BUNDLED, bundled_path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny", choices=sorted(BUNDLED))
    parser.add_argument("--target", default="ecp5-85k")
    parser.add_argument("--seeds", type=int, nargs="*", default=[])
    parser.add_argument("--aim", type=float, default=150.0, help="MHz")
    parser.add_argument("--cycles", type=int, nargs="*", metavar="SEQUENCES")
    for name, default in (("rows", 8), ("cols", 64), ("clusters", 4), ("sequences", 16),
                          ("post-lanes", 4), ("cell-lanes", 2), ("quant-lanes", 8),
                          ("root-digit-bits", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = vars(parser.parse_args())
    model = load_model(bundled_path(options.pop("model")))
    target = target_named(options.pop("target"))
    seeds, aim, counted = options.pop("seeds"), options.pop("aim"), options.pop("cycles")
    if counted is not None:
        for sequences in counted:
            params = CoreParams(Limits.of(model), **options | {"sequences": sequences})
            greedy, drawn = (float(cycles_per_token(params, model.config, sampled=sampled))
                             for sampled in (False, True))
            print(f"{sequences} sequences: {greedy:,.1f} cycles a token, {drawn:,.1f} if drawn",
                  flush=True)
        return
    params = CoreParams(Limits.of(model), **options, style="ecp5-chain")
    tools = CachedTools(target, user_cache("synthesis"), lambda text, step: None)
    mapped = tools.map(verilog_files(Core(build_image(model, params)), "core"), "core")
    area = BlockArea.of_cells(mapped.synthesis, mapped.synthesis.cells)
    print(f"Yosys: {area.lut:,} LUT, {area.ff:,} flip-flops, {area.block_ram} block RAMs, "
          f"{area.dsp} multipliers", flush=True)
    for each in tools.count(mapped):
        print(f"{each.tool}: {each.resource.value} {each.needed:,}", flush=True)
    blocks = {path: BlockArea.of_cells(mapped.synthesis, cells)
              for path, cells in mapped.hierarchy.area().items()}
    for path, block in sorted(blocks.items(), key=lambda each: -each[1].lut)[:30]:
        print(f"  {path or '(itself)':24} {block.lut:6,} LUT {block.ff:6,} FF {block.dsp:3} mult")
    clocks = []
    for seed in seeds:
        run = tools.place(mapped, aim, seed, f"seed {seed}")
        clocks.append(run.fmax_mhz)
        print(f"seed {seed}: {run.fmax_mhz:.1f} MHz; {run.path}", flush=True)
    if clocks:
        print(f"median {statistics.median(clocks):.1f} MHz, best {max(clocks):.1f}")


if __name__ == "__main__":
    main()
