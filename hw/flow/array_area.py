"""What an array takes of an FPGA, counted by the tool that places it where pip has one."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from amaranth.lib import wiring

from sterna.hw.emit.verilog import write_verilog
from sterna.hw.flow.netlist.carry_ends import free_carry_ends
from sterna.hw.flow.place_route import pack, place_and_route, resources_of
from sterna.hw.flow.synthesis import Family, synthesize
from sterna.hw.flow.target import FpgaTarget, Resource

__all__ = ["ArrayArea", "array_area"]

_MODULE = "array"


@dataclass(frozen=True, slots=True)
class ArrayArea:
    """What an array takes.

    Parameters
    ----------
    macs
        Products added up per cycle.
    luts
        Look-up tables with those that carries and LUT RAM are made of, and those whose
        place the address of a LUT RAM takes: what nextpnr counts for ECP5 (TRELLIS_COMB)
        and iCE40 (logic cells), the sum of Yosys's cells for the 7 series.
    mapped_luts
        The same of Yosys's cells: without what nextpnr adds, and on iCE40 without logic
        cells that hold a flip-flop only.
    flip_flops, multipliers
        Flip-flops and multiplier blocks.
    fmax_mhz
        Highest clock of the array by itself; None if it was not placed.
    """

    macs: int
    luts: int
    mapped_luts: int
    flip_flops: int
    multipliers: int
    fmax_mhz: float | None = None

    @property
    def luts_per_mac(self) -> float:
        """LUTs for one product per cycle, accumulators and control included."""
        return self.luts / self.macs


def array_area(
    component: wiring.Component, macs: int, target: FpgaTarget, *, multipliers: bool = True,
    aim_mhz: float | None = None, seed: int = 1,
) -> ArrayArea:
    """Synthesise an array and count its cells; place and route it if there is an aim.

    Parameters
    ----------
    component
        The array.
    macs
        Products that it adds up per cycle.
    target
        What it is built for.
    multipliers
        Whether multiplier blocks may be used.
    aim_mhz, seed
        Clock to aim at and the placer's starting point. Only for a target with a router.

    Raises
    ------
    YosysError, PlaceRouteError
        If a tool fails.
    """
    with tempfile.TemporaryDirectory(prefix="sterna-area-") as name:
        folder = Path(name)
        source, netlist = write_verilog(component, _MODULE, folder), folder / "netlist.json"
        mapped = synthesize(
            source, _MODULE, target.family, multipliers=multipliers, netlist_path=netlist)
        luts, flip_flops = mapped.luts_with_carries, mapped.flip_flops
        fmax_mhz = None
        if target.router is not None:
            data = json.loads(netlist.read_bytes())
            if target.family is Family.ECP5:
                free_carry_ends(data, _MODULE)
            packed = json.dumps(data).encode()
            counts = resources_of(target.router, pack(folder, target, packed))
            luts = counts[Resource.LUT]
            if aim_mhz is not None:
                report = place_and_route(folder, target, packed, freq_mhz=aim_mhz, seed=seed)
                fmax_mhz = min(each["achieved"] for each in report["fmax"].values())
    return ArrayArea(
        macs, luts, mapped.luts_with_carries, flip_flops, mapped.multipliers, fmax_mhz)
