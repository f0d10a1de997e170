"""Cycles, area and clock of the engine for a bundled model.

With ``--cycles`` Verilator counts the cycles of a greedy token, for each number of sequences.
Otherwise Yosys synthesises the engine for an ECP5 and nextpnr packs it; with ``--seeds`` nextpnr
places and routes it once for each. What both give is kept in Sterna's cache.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from sterna.hw.core.plan.request import Request
from sterna.hw.emit.verilog import verilog_files
from sterna.hw.engine.engine import Engine
from sterna.hw.engine.engine_image import build_image
from sterna.hw.engine.engine_params import EngineParams, Limits
from sterna.hw.flow.cached_tools import CachedTools
from sterna.hw.flow.synth_report import BlockArea
from sterna.hw.flow.target import target_named
from sterna.model.cache import user_cache
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.bundled import BUNDLED, bundled_path
from sterna.sim.engine import run_engine, write_engine


def count_cycles(model: QuantizedModel, params: EngineParams) -> None:
    """Print the cycles of a token, when every sequence generates."""
    image, each = build_image(model, params), 7
    asked = [(number, Request((7 * number,), tokens=each))
             for number in range(params.sequences)]
    with tempfile.TemporaryDirectory(prefix="sterna-engine-") as name:
        runs = run_engine(image, write_engine(image, Path(name)), asked,
                          each * params.sequences, Path(name) / "run")
    # Away from both ends, where not every sequence runs.
    rounds = [(run.token_cycles[5] - run.token_cycles[2]) / 3 for run in runs]
    print(f"{params.sequences} sequences: {statistics.mean(rounds) / params.sequences:,.1f} cycles "
          f"a token", flush=True)


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
            count_cycles(model, EngineParams(
                Limits.of(model), **options | {"sequences": sequences}))
        return
    params = EngineParams(Limits.of(model), **options, style="ecp5-chain")
    tools = CachedTools(target, user_cache("synthesis"), lambda text, step: None)
    mapped = tools.map(verilog_files(Engine(build_image(model, params)), "engine"), "engine")
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
