"""A model too large for block RAM, simulated with a 16-bit SDRAM and its controller.

    OPENBLAS_NUM_THREADS=1 python benchmarks/memory.py

The core's Verilog, the controller and a memory model that checks its timing run in Verilator: every
sequence gets a token, and answers with two. Tokens and logits are compared with the integer
reference and with onnxruntime; then the cycles of a token of all sequences are printed, and how
many of them delivered a word.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from sterna.hw.core.compute.request import Request
from sterna.hw.core.image.core_image import build_image
from sterna.hw.core.image.linear import ImageHeader, pack_image
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.core.params.limits import Limits
from sterna.hw.core.product.core_product import core_design
from sterna.hw.emit.folder import emit_component
from sterna.hw.memory.sdram import SdramParams
from sterna.model.config import ModelConfig
from sterna.model.profile import S16
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.synthetic import random_model
from sterna.sim.core.memory import SimulatedSdram, sdram_faults
from sterna.sim.core.scoreboard import CorePhaseReport
from sterna.sim.core.simulate import run_core_phases
from sterna.sim.core.stimulus import CorePhase

TOKENS = 2


def simulate(
    model: QuantizedModel, params: CoreParams, memory: SdramParams, image: bytes, work: Path,
) -> CorePhaseReport:
    """Run a token through every sequence, and compare the results.

    Exits with 1 if something differs, or the memory timing was violated.
    """
    core = emit_component(model, core_design(model, params), work / "core")
    words = np.frombuffer(image, dtype="<u2")
    contents = work / "sdram.mem"
    contents.write_text("".join(f"{word:04x}\n" for word in words))
    report, = run_core_phases(
        model, core, [CorePhase("text", tuple(
            (number, Request((7 * number,), tokens=TOKENS))
            for number in range(params.sequences)))],
        memory=SimulatedSdram(
            memory, params.address_bits, words=len(words), contents=str(contents)), work=work)
    if not report.checks.passed:
        sys.exit(f"a difference: {report.checks.first}")
    for faults in sdram_faults(work / "core_cocotb_verilator" / "simulation.log"):
        if faults:
            sys.exit(f"the memory says: {faults[0]}")
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("d", 512), ("layers", 12), ("dff", 704), ("vocab", 256),
                          ("rows", 8), ("cols", 64), ("clusters", 4), ("sequences", 16),
                          ("post-lanes", 4), ("cell-lanes", 2), ("quant-lanes", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--clock", type=float, default=80.0, help="MHz of core and memory")
    options = vars(parser.parse_args())
    memory = SdramParams(int(1e6 * options.pop("clock")))
    model = random_model(
        ModelConfig(*(options.pop(name) for name in ("d", "layers", "dff", "vocab"))), S16, seed=1)
    params = CoreParams(Limits.of(model), **options, port_bits=16)
    weights = sum(each.weight.size for each in model.projections.values())
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="sterna-memory-") as name:
        packed = pack_image(build_image(model, params))
        report = simulate(model, params, memory, packed, Path(name))
    print(f"{weights:,} weights, an image of {len(packed):,} bytes: "
          f"{8 * len(packed) / weights:.3f} bits a weight", flush=True)
    print(f"{sum(map(len, report.generated))} tokens and their logits: those of the reference "
          f"and of onnxruntime; no time of the memory missed", flush=True)
    cycles = int(np.mean([second - first for first, second in report.token_cycles]))
    header = ImageHeader.from_bytes(packed)
    first = params.image_header_parts + header.stages * params.stage_parts
    words = header.embedding - first + params.sequences * header.row
    print(f"a token of {params.sequences} sequences: {cycles:,} cycles, {words:,} words: "
          f"{words / cycles:.1%} of the cycles bring a word; at {memory.clock_hz / 1e6:g} MHz "
          f"{params.sequences * memory.clock_hz / cycles:.1f} tokens/s in total")
    print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
