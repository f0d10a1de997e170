"""Leaving the ends of ECP5 carry chains open, which nextpnr otherwise fills with cells.

Yosys connects the carry input of a chain's first CCU2C to 0 and gives the carry output of
its last one a net that nobody reads. nextpnr-ecp5 takes both for connections to ordinary
logic and puts a further CCU2C, two LUTs, before and behind the chain.

The output is freed wherever nobody reads it. The input is freed only where the first half of
the cell ignores it, as in the adders of :mod:`sterna.hw.units.mac.ecp5_rows`: what an open carry
input holds in the device is not documented.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

__all__ = ["CarryEnds", "free_carry_ends"]

_OPEN = ["x"]


@dataclass(slots=True)
class CarryEnds:
    """What was freed.

    Parameters
    ----------
    inputs, outputs
        Carry inputs and carry outputs that are open now, two LUTs each.
    """

    inputs: int = 0
    outputs: int = 0


def free_carry_ends(netlist: dict[str, Any], top: str) -> CarryEnds:
    """Open the ends of the carry chains of a flattened ECP5 netlist, in place.

    Parameters
    ----------
    netlist
        What Yosys wrote as JSON.
    top
        Module to change.

    Raises
    ------
    ValueError
        If there is no such module.
    """
    if top not in netlist["modules"]:
        raise ValueError(f"the netlist has no module {top}")
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
    """Whether the first half never passes its carry on."""
    parameters, pins = cell["parameters"], cell["connections"]
    init = int(parameters["INIT0"], 2)
    levels = [pins[f"{pin}0"][0] for pin in "ABCD"]
    possible = [
        index for index in range(16)
        if all(level not in ("0", "1") or index >> bit & 1 == int(level)
               for bit, level in enumerate(levels))]
    return parameters["INJECT1_0"] == "NO" and not any(init >> index & 1 for index in possible)
