"""The folder of a core behind registers: their map for C, Verilog and readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sterna.hw.core.core_params import CoreParams
from sterna.hw.core.core_product import core_design
from sterna.hw.core.image_reader import ImageStatus
from sterna.hw.core.registers import EVENT_MEANINGS, Bus, Event, Register, RegisterCore
from sterna.hw.emit.folder import UnitDesign
from sterna.model.quantized import QuantizedModel

__all__ = ["REGISTERS_MODULE", "register_design"]

REGISTERS_MODULE = "matmul_free_core_bus"


def register_design(
    model: QuantizedModel, params: CoreParams, bus: Bus, name: str,
) -> UnitDesign:
    """Design a core behind registers, and what its folder says of them; ``name`` is the module's.

    ValueError if the core has a trace, or a port that no AXI4 bus has.
    """
    if params.trace:
        raise ValueError("--trace does not go with --bus: its port has no register")
    if params.port_bits and not 32 <= params.port_bits <= 512:
        raise ValueError(f"an AXI4 bus has 32 to 512 bits: --port-bits is {params.port_bits}")
    core = core_design(model, params)
    component = RegisterCore(core.component, bus)
    return replace(
        core, component=component, module=name,
        summary=f"{core.summary} Behind registers on {_BUS_NAMES[bus]}.",
        sections=_sections(component, name),
        extra={**core.extra, "bus": bus.value, "registers": [
            {"name": each.name, "offset": offset, "bits": each.bits, "access": each.access,
             "meaning": each.meaning} for offset, each in _places(component.registers)]},
        extra_files={**core.extra_files, f"{name}.h": _header(component.registers, name),
                     f"{name}.vh": _verilog_header(component.registers, name)})


_BUS_NAMES = {Bus.AXI4_LITE: "AXI4-Lite", Bus.WISHBONE: "Wishbone"}


def _places(registers: Sequence[Register]) -> Iterator[tuple[int, Register]]:
    return ((4 * index, each) for index, each in enumerate(registers))


def _header(registers: Sequence[Register], module: str) -> str:
    """The map in C: ``STERNA_PROMPT_TOKEN`` is an offset in bytes."""
    guard = f"{module.upper()}_H"
    lines = [f"/* Registers of {module}. Written by Sterna. */",
             f"#ifndef {guard}", f"#define {guard}", ""]
    lines += [f"#define STERNA_{each.name} 0x{offset:03x}u /* {each.access}, {each.bits} "
              f"bit{'s' * (each.bits > 1)}: "
              f"{each.meaning} */" for offset, each in _places(registers)]
    lines += ["", *(f"#define STERNA_EVENT_{event.name} 0x{1 << event:02x}u" for event in Event),
              "", *(f"#define STERNA_STATUS_{name} {status.value}u"
                    for name, status in ImageStatus.__members__.items()),
              "", "#define STERNA_CONTROL_RESET 0x1u", "#define STERNA_CONTROL_LOGITS 0x2u",
              "", "#endif", ""]
    return "\n".join(lines)


def _verilog_header(registers: Sequence[Register], module: str) -> str:
    """The map in Verilog, to be included in a module."""
    lines = [f"// Registers of {module}. Written by Sterna."]
    lines += [f"localparam [11:0] STERNA_{each.name} = 12'h{offset:03x};"
              for offset, each in _places(registers)]
    lines += [f"localparam integer STERNA_EVENT_{event.name} = {event.value};" for event in Event]
    return "\n".join([*lines, ""])


def _sections(component: RegisterCore, module: str) -> str:
    rows = "\n".join(f"| 0x{offset:03x} | `{each.name}` | {each.access} | {each.bits} | "
                     f"{each.meaning} |" for offset, each in _places(component.registers))
    events = "\n".join(f"| {event.value} | `{event.name}` | {meaning} |"
                       for event, meaning in EVENT_MEANINGS.items())
    text = _USE.format(module=module, rows=rows, events=events)
    return text + (_MEMORY if component.reader else "")


_USE = """\
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

- **Send a prompt** token by token, once `CAN_SEND` is 1: write the registers `PROMPT_...` that
  differ from the token before, then `PROMPT_SEND`. `PROMPT_START` goes with the first token of a
  text, `PROMPT_PREDICT` with the last one.
- **Take a token** once `TOKEN` is 1: read `TOKEN_SEQUENCE`, `TOKEN_TOKEN` and `TOKEN_LAST`, which
  is 1 with the last one of a text, then write `TOKEN_TAKE`. The core waits for that, and with bit 1
  of `CONTROL` for `LOGITS_TAKE`.
- **Refused** is a prompt token if a number in its registers is out of range or another one still
  waits, and a `TAKE` while nothing waits: nothing is sent or taken.
- `irq` is high while `EVENTS` and `ENABLE` have a bit in common.
- While bit 0 of `CONTROL` is 1 the core is in reset. Afterwards every text begins anew.
"""

_MEMORY = """
## Memory

The core reads its model as an AXI4 master, in bursts of at most 4 KB. It begins in reset: put the
image into memory (`image.hex`, or what `sterna pack` writes), its address into `BASE_LOW` and
`BASE_HIGH`, and 0 into `CONTROL`. `STATUS` becomes 1 (`RUNNING`) if the image is whole and for this
core, another number if not. For another image write 1 to `CONTROL` and begin again: words that
were asked for are waited for.
"""
