"""Registers around a unit that has more ports than a device has pins."""

from __future__ import annotations

from collections.abc import Sequence

from sterna.hw.emit.documents import Port

__all__ = ["WRAPPER_INSTANCE", "WRAPPER_MODULE", "wrapper_text"]

WRAPPER_MODULE = "sterna_wrapper"
WRAPPER_INSTANCE = "unit"

_FOLD = 4


def wrapper_text(module: str, ports: Sequence[Port]) -> str:
    """Return Verilog of a module with four pins around ``module``.

    A shift register, with a part named like each input, drives it; every output goes to a
    register, and the parity of those, four at a time with a register after each step, to a
    pin. So every path of the unit lies between two registers, and every output matters.

    Parameters
    ----------
    module
        Name of the module inside; its instance is ``unit``.
    ports
        Its ports, ``clk`` and ``rst`` among them.

    Raises
    ------
    ValueError
        If it has no inputs or no outputs beside the clock and the reset.
    """
    inputs, outputs = (
        [port for port in ports if port.direction == way and port.name not in ("clk", "rst")]
        for way in ("input", "output"))
    if not inputs or not outputs:
        raise ValueError(f"{module} must have inputs and outputs beside clk and rst")
    width = sum(port.width for port in outputs)
    lines = [f"module {WRAPPER_MODULE}(",
             "  input clk, input rst, input wrapper_in, output wrapper_out);",
             "  reg wrapper_rst;", "  always @(posedge clk) wrapper_rst <= rst;"]
    before = "wrapper_in"
    for port in inputs:
        lines += [f"  reg [{port.width - 1}:0] {port.name};",
                  f"  always @(posedge clk) {port.name} <= {{{port.name}, {before}}};"]
        before = f"{port.name}[{port.width - 1}]"
    lines += [f"  wire [{port.width - 1}:0] {port.name};" for port in outputs]
    connections = ", ".join(
        [".clk(clk)", ".rst(wrapper_rst)",
         *(f".{port.name}({port.name})" for port in (*inputs, *outputs))])
    lines += [f"  {module} {WRAPPER_INSTANCE} ({connections});",
              f"  reg [{width - 1}:0] wrapper_fold0;",
              "  always @(posedge clk) wrapper_fold0 <= "
              f"{{{', '.join(port.name for port in outputs)}}};"]
    level = 0
    while width > 1:
        folded = -(-width // _FOLD)
        here, after = f"wrapper_fold{level}", f"wrapper_fold{level + 1}"
        lines += [f"  reg [{folded - 1}:0] {after};", "  always @(posedge clk) begin"]
        for place in range(folded):
            high = min(width, _FOLD * (place + 1)) - 1
            lines.append(f"    {after}[{place}] <= ^{here}[{high}:{_FOLD * place}];")
        lines.append("  end")
        width, level = folded, level + 1
    lines += [f"  assign wrapper_out = wrapper_fold{level}[0];", "endmodule", ""]
    return "\n".join(lines)
