"""Verilog wrapper with AXI4-Stream ports, generated from the ports of a module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sterna.hw.emit.documents import Port
from sterna.hw.emit.payloads import FieldBits

__all__ = ["AxisStream", "axis_manifest", "axis_section", "axis_streams", "axis_text"]

_LAST = "last"


@dataclass(frozen=True, slots=True)
class AxisStream:
    """A stream of a module and its mapping to AXI4-Stream."""

    name: str  # prefix of its ports
    is_input: bool
    payload: tuple[FieldBits, ...]  # a field ``last`` is ``tlast``, the others are on ``tdata``

    @property
    def prefix(self) -> str:
        """Prefix of its AXI4-Stream ports, such as ``s_axis_words_0``."""
        return f"{'s' if self.is_input else 'm'}_axis_{self.name.replace('__', '_')}"

    @property
    def last(self) -> FieldBits | None:
        """The field that is ``tlast``: one bit with the name ``last``."""
        return next((field for field in self.payload
                     if field.name == _LAST and field.low == field.high), None)

    @property
    def fields(self) -> tuple[FieldBits, ...]:
        """The fields on ``tdata``, in the order of the payload and without gaps."""
        found, low = [], 0
        for field in self.payload:
            if field is not self.last:
                high = low + field.high - field.low
                found.append(FieldBits(
                    field.name, low, high, field.dims, field.element_bits, field.signed))
                low = high + 1
        return tuple(found)

    @property
    def payload_bits(self) -> int:
        """Width of the payload of the module."""
        return self.payload[-1].high + 1

    @property
    def used_bits(self) -> int:
        """Bits of ``tdata`` in use."""
        return self.fields[-1].high + 1 if self.fields else 0

    @property
    def tdata_bits(self) -> int:
        """Width of ``tdata``: whole bytes, at least one."""
        return 8 * max(1, -(-self.used_bits // 8))


def axis_streams(
    module_ports: Sequence[Port], fields: Mapping[str, Sequence[FieldBits]],
) -> list[AxisStream]:
    inputs = {port.name for port in module_ports if port.direction == "input"}
    return [AxisStream(name, f"{name}__payload" in inputs, tuple(members))
            for name, members in fields.items()]


def axis_manifest(module: str, streams: Sequence[AxisStream]) -> dict[str, Any]:
    """Return the entries of the wrapper in ``params.json``."""
    return {
        "module": f"{module}_axis",
        "streams": {
            stream.name: {
                "ports": stream.prefix, "tdata_bits": stream.tdata_bits,
                "fields": [asdict(field) for field in stream.fields],
                "tlast": _LAST if stream.last else None}
            for stream in streams}}


def axis_text(
    module: str, module_ports: Sequence[Port], streams: Sequence[AxisStream],
) -> str:
    """Return the wrapper ``<module>_axis`` in Verilog-2005."""
    of_streams = {f"{each.name}__{part}" for each in streams
                  for part in ("payload", "valid", "ready")}
    plain = [port for port in module_ports if port.name not in {"clk", "rst", *of_streams}]
    declared = [*_clock(streams), *(line for each in streams for line in _ports(each)),
                *(f"{port.direction} wire {_range(port.width)}{port.name}" for port in plain)]
    body = [line for each in streams for line in _wiring(each)]
    connections = [".clk(aclk)", ".rst(rst)"]
    for each in streams:
        connections += [f".{each.name}__{part}({each.name}__{part})"
                        for part in ("payload", "valid", "ready")]
    connections += [f".{port.name}({port.name})" for port in plain]
    return "\n".join([
        f"// {module} with AXI4-Stream ports. Written by Sterna.",
        "`default_nettype none", "",
        f"module {module}_axis (",
        ",\n".join(f"    {port}" for port in declared), ");",
        "    wire rst = ~aresetn;",
        *(f"    {line}".rstrip() for line in body), "",
        f"    {module} wrapped (",
        ",\n".join(f"        {each}" for each in connections), "    );",
        "endmodule", "", "`default_nettype wire", ""])


def axis_section(module: str, streams: Sequence[AxisStream]) -> str:
    """Return the README section on the wrapper."""
    lines = [
        "## AXI4-Stream", "",
        f"`{module}_axis.v` has the same streams as AXI4-Stream, and `aclk` and `aresetn`",
        "(synchronous, active low) for `clk` and `rst`; other ports are the same. `tdata` has the",
        "fields of the payload from bit 0 on, without a gap, but for `last`, which is `tlast`. The",
        "bits above them, up to whole bytes, are zero where a stream goes out and ignored where",
        "it comes in. While `aresetn` is low nothing moves. `params.json` has this table under",
        "`axis`.", "",
        "| ports | `tdata` bits | fields on `tdata` | `tlast` |", "|---|---|---|---|"]
    for each in streams:
        fields = ", ".join(
            f"{_at(field)} `{field.name or each.name}`" for field in each.fields)
        lines.append(f"| `{each.prefix}_*` | {each.tdata_bits} | {fields} | "
                     f"{'yes' if each.last else 'no'} |")
    return "\n".join(lines)


def _range(width: int) -> str:
    return f"[{width - 1}:0] " if width > 1 else ""


def _clock(streams: Sequence[AxisStream]) -> list[str]:
    """The declarations of clock and reset, with the attributes for Vivado's block designs."""
    buses = ":".join(each.prefix for each in streams)
    return [
        '(* X_INTERFACE_INFO = "xilinx.com:signal:clock:1.0 aclk CLK" *)\n'
        f'    (* X_INTERFACE_PARAMETER = "ASSOCIATED_BUSIF {buses}, '
        'ASSOCIATED_RESET aresetn" *)\n'
        "    input wire aclk",
        '(* X_INTERFACE_INFO = "xilinx.com:signal:reset:1.0 aresetn RST" *)\n'
        '    (* X_INTERFACE_PARAMETER = "POLARITY ACTIVE_LOW" *)\n'
        "    input wire aresetn"]


def _ports(stream: AxisStream) -> list[str]:
    there, back = ("input", "output") if stream.is_input else ("output", "input")
    ports = [(there, _range(stream.tdata_bits), "tdata"), (there, "", "tvalid")]
    if stream.last:
        ports.append((there, "", "tlast"))
    ports.append((back, "", "tready"))
    return [
        f'(* X_INTERFACE_INFO = "xilinx.com:interface:axis:1.0 {stream.prefix} '
        f'{name.upper()}" *)\n    {direction} wire {width}{stream.prefix}_{name}'
        for direction, width, name in ports]


def _wiring(stream: AxisStream) -> list[str]:
    """The connections between the ports of a stream and those of the module."""
    name, prefix = stream.name, stream.prefix
    lines = ["", f"wire {_range(stream.payload_bits)}{name}__payload;", f"wire {name}__valid;",
             f"wire {name}__ready;"]
    if stream.is_input:
        return [*lines, f"assign {name}__payload = {_payload(stream)};",
                f"assign {name}__valid = {prefix}_tvalid & aresetn;",
                f"assign {prefix}_tready = {name}__ready & aresetn;"]
    padding = stream.tdata_bits - stream.used_bits
    data = [f"{padding}'d0"] if padding else []
    data += [_bits(stream, field) for field in reversed(stream.payload) if field is not stream.last]
    lines += [f"assign {prefix}_tdata = {{{', '.join(data)}}};",
              f"assign {prefix}_tvalid = {name}__valid & aresetn;"]
    if stream.last:
        lines.append(f"assign {prefix}_tlast = {_bits(stream, stream.last)};")
    return [*lines, f"assign {name}__ready = {prefix}_tready & aresetn;"]


def _payload(stream: AxisStream) -> str:
    """The payload of an input, highest field first."""
    at = {field.name: _at(field) for field in stream.fields}
    return "{" + ", ".join(
        f"{stream.prefix}_tlast" if field is stream.last else
        f"{stream.prefix}_tdata[{at[field.name]}]" for field in reversed(stream.payload)) + "}"


def _bits(stream: AxisStream, field: FieldBits) -> str:
    """The bits of a field in the payload of the module."""
    if stream.payload_bits == 1:
        return f"{stream.name}__payload"
    return f"{stream.name}__payload[{_at(field)}]"


def _at(field: FieldBits) -> str:
    return f"{field.high}:{field.low}" if field.high > field.low else str(field.low)
