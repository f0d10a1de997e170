"""The folder of a unit behind registers: their map for C, Verilog and readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sterna.hw.core.image.reader import ImageStatus
from sterna.hw.core.product.registers import Bus, Register, RegisterUnit, StreamRegisters
from sterna.hw.emit.folder import UnitDesign

__all__ = ["register_design"]


def register_design(
    design: UnitDesign, bus: Bus, name: str, sends: StreamRegisters,
    takes: Sequence[StreamRegisters], use: str,
) -> UnitDesign:
    """Put the unit of a design behind registers and document them in its folder; ``use`` is the
    usage text. The unit has no trace port, which would have no registers."""
    component = RegisterUnit(design.component, bus, sends, takes)
    return replace(
        design, component=component, module=name, vectors=None,
        summary=f"{design.summary} Behind registers on {_BUS_NAMES[bus]}.",
        sections=_sections(component, name, use),
        extra={**design.extra, "bus": bus.value, "registers": [
            {"name": each.name, "offset": offset, "bits": each.bits, "access": each.access,
             "meaning": each.meaning} for offset, each in _places(component.registers)]},
        extra_files={**design.extra_files, f"{name}.h": _header(component, name),
                     f"{name}.vh": _verilog_header(component, name)})


_BUS_NAMES = {Bus.AXI4_LITE: "AXI4-Lite", Bus.WISHBONE: "Wishbone"}


def _places(registers: Sequence[Register]) -> Iterator[tuple[int, Register]]:
    return ((4 * index, each) for index, each in enumerate(registers))


def _header(unit: RegisterUnit, module: str) -> str:
    """The map in C: ``STERNA_PROMPT_TOKEN`` is an offset in bytes."""
    guard = f"{module.upper()}_H"
    lines = [f"/* Registers of {module}. Written by Sterna. */",
             f"#ifndef {guard}", f"#define {guard}", ""]
    lines += [f"#define STERNA_{each.name} 0x{offset:03x}u /* {each.access}, {each.bits} "
              f"bit{'s' * (each.bits > 1)}: "
              f"{each.meaning} */" for offset, each in _places(unit.registers)]
    lines += ["", *(f"#define STERNA_EVENT_{event} 0x{1 << bit:02x}u"
                    for bit, event in enumerate(unit.events)), ""]
    if unit.reader:
        lines += [*(f"#define STERNA_STATUS_{name} {status.value}u"
                    for name, status in ImageStatus.__members__.items()), ""]
    lines.append("#define STERNA_CONTROL_RESET 0x1u")
    lines += [f"#define STERNA_CONTROL_{each.prefix} 0x2u"
              for each in unit.takes if each.is_optional]
    return "\n".join([*lines, "", "#endif", ""])


def _verilog_header(unit: RegisterUnit, module: str) -> str:
    """The map in Verilog, for inclusion in a module."""
    lines = [f"// Registers of {module}. Written by Sterna."]
    lines += [f"localparam [11:0] STERNA_{each.name} = 12'h{offset:03x};"
              for offset, each in _places(unit.registers)]
    lines += [f"localparam integer STERNA_EVENT_{event} = {bit};"
              for bit, event in enumerate(unit.events)]
    return "\n".join([*lines, ""])


def _sections(unit: RegisterUnit, module: str, use: str) -> str:
    rows = "\n".join(f"| 0x{offset:03x} | `{each.name}` | {each.access} | {each.bits} | "
                     f"{each.meaning} |" for offset, each in _places(unit.registers))
    events = "\n".join(f"| {bit} | `{event}` | {meaning} |"
                       for bit, (event, meaning) in enumerate(unit.events.items()))
    return (_REGISTERS.format(module=module, rows=rows, events=events) + use
            + (_MEMORY if unit.reader else ""))


_REGISTERS = """\
## Registers

32 bits each, at byte addresses; `{module}.h` has them for C, `{module}.vh` for Verilog. Write all
four bytes at once. Other writes, other addresses, reads of what can only be written and writes of
what can only be read are answered with an error, and change nothing.

| address | name | access | bits | meaning |
|---|---|---|---|---|
{rows}

| bit of `EVENTS` | name | |
|---|---|---|
{events}

`irq` is high while `EVENTS` and `ENABLE` have a bit in common.

"""

_MEMORY = """
## Memory

The unit reads its model as an AXI4 master, in bursts of at most 4 KB. It begins in reset: put the
image into memory (`image.hex`, or what `sterna pack` writes), its address into `BASE_LOW` and
`BASE_HIGH`, and 0 into `CONTROL`. `STATUS` becomes 1 (`RUNNING`) if the image is whole and for this
unit, another number if not. For another image write 1 to `CONTROL` and begin again: words that
were asked for are waited for.
"""
