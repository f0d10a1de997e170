"""A netlist for ECP5, as Yosys writes it for the router, as Verilog that simulates.

So what is simulated is the very netlist that is placed, after every pass over it in Python.
Its cells are instances of the models in ``hw/emit/cells``.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from sterna.hw.emit.tools import run_yosys

__all__ = ["NetlistError", "model_files", "netlist_verilog"]

# Files in hw/emit/cells with the models of all cells that a netlist may have.
_MODELS = ("ecp5.v", "ecp5_netlist.v", "board_sim.v")
_CELLS = {
    "BB", "CCU2C", "DP16KD", "EHXPLLL", "IB", "L6MUX21", "LUT4", "MULT18X18D", "OB", "PFUMX",
    "TRELLIS_DPR16X4", "TRELLIS_FF"}
_NO_HARDWARE = {"$scopeinfo"}

# Yosys names what it makes for the cells around it, up to twenty deep: longer than all the rest
# of the file, and of what Verilator makes of it. Wires of the design keep their names.
_SCRIPT = """
read_json netlist.json
rename -hide c:* {made}
write_verilog -noattr netlist.v
"""


class NetlistError(ValueError):
    """A netlist has something that the models of its cells do not have."""


def netlist_verilog(netlist: dict[str, Any], top: str, *, timeout_s: float = 600) -> str:
    """Write a netlist as Verilog; ports and the wires of the design keep their names.

    Parameters
    ----------
    netlist
        A flattened design, as ``write_json`` of Yosys writes it after ``synth_ecp5``.
    top
        Name of its module.
    timeout_s
        Deadline in seconds.

    Raises
    ------
    NetlistError
        If there is no such module, or a cell or its clocking is not modelled.
    MissingToolError
        If Yosys is not installed.
    YosysError
        If Yosys does not accept the netlist, or takes too long.
    """
    _check(netlist, top)
    with tempfile.TemporaryDirectory(prefix="sterna-netlist-") as name:
        folder = Path(name)
        (folder / "netlist.json").write_text(json.dumps(netlist), encoding="utf-8")
        run_yosys(folder, _SCRIPT.format(
            made=" ".join(f"w:*_{kind}_*" for kind in sorted(_CELLS))), timeout_s=timeout_s)
        text = (folder / "netlist.v").read_text(encoding="utf-8")
    # A cell on a line: half the lines, and a tenth of the bytes.
    return re.sub(r"(?<=[(,])\n +(?=\.)|\n +(?=\))", "", text)


def model_files() -> dict[str, str]:
    """Return the Verilog of the models of all cells, by file name."""
    folder = files("sterna.hw.emit.cells")
    return {name: folder.joinpath(name).read_text(encoding="utf-8") for name in _MODELS}


def _check(netlist: dict[str, Any], top: str) -> None:
    modules = netlist.get("modules", {})
    if top not in modules:
        raise NetlistError(f"the netlist has no module {top!r}, only {', '.join(modules)}")
    for name, cell in modules[top]["cells"].items():
        kind = cell["type"]
        if kind not in _CELLS | _NO_HARDWARE:
            raise NetlistError(
                f"{name} is a {kind}; there are models of {', '.join(sorted(_CELLS))} only")
        if kind == "DP16KD" and len(set(_clocks(cell))) > 1:
            raise NetlistError(
                f"{name} must have the same clock at both ports, has two: what one port reads "
                f"while the other writes it is modelled for one clock only")


def _clocks(cell: dict[str, Any]) -> Iterator[tuple[int, bool]]:
    """Net and edge of every clock of a block RAM."""
    for port in "AB":
        net = cell["connections"].get(f"CLK{port}", ["0"])[0]
        if isinstance(net, int):
            yield net, cell["parameters"].get(f"CLK{port}MUX") == "INV"
