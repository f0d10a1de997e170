"""Top modules of boards with the model in SDRAM: with pads, or with a model of the memory.

Both are written in Verilog, since the pads are bidirectional.
"""

from __future__ import annotations

from sterna.hw.memory.sdram import SdramParams

__all__ = ["CORE_MODULE", "sdram_pads", "simulated_sdram"]

CORE_MODULE = "board_core"
"""The module behind the pads."""

_TOP = """
module {top} (
  input clk, input rx, output tx, output led, output radio_gpio0{pins}
);
  wire memory_clk;
  wire [2:0] command;
  wire [1:0] bank;
  wire [12:0] row;
  wire [15:0] dq_i, dq_o;
  wire dq_oe;
  {core} core (
    .clk(clk), .rx(rx), .tx(tx), .led(led), .radio_gpio0(radio_gpio0), .memory_clk(memory_clk),
    .command(command), .bank(bank), .row(row), .dq_i(dq_i), .dq_o(dq_o), .dq_oe(dq_oe));
{memory}endmodule
"""

_PINS = """,
  output sdram_clk, output sdram_clk_en, output sdram_cs, output sdram_ras, output sdram_cas,
  output sdram_we, output [1:0] sdram_ba, output [12:0] sdram_a, output [1:0] sdram_dqm,
  inout [15:0] sdram_dq"""

_PADS = """\
  assign {sdram_ras, sdram_cas, sdram_we} = command;
  assign sdram_ba = bank;
  assign sdram_a = row;
  assign {sdram_clk_en, sdram_cs, sdram_dqm} = 4'b1000;
"""

_MODEL = """\
  sdram_model #(.CONTENTS("{contents}"), .WORDS({words})) memory (
    .clk(memory_clk), .rst(1'b0), {times}, .command(command), .bank(bank), .row(row),
    .dq_o(dq_o), .dq_oe(dq_oe), .dq_i(dq_i));
"""

_CONTENTS = "sdram.mem"


def sdram_pads(top: str, pads: str) -> str:
    """The top module for synthesis, with the family's pads for clock and data."""
    return _TOP.format(top=top, core=CORE_MODULE, pins=_PINS, memory=_PADS + pads)


def simulated_sdram(
    verilog: str, top: str, pads: str, clock_hz: int, image: bytes,
) -> dict[str, str]:
    """Verilog with ``sdram_model`` instead of its ``pads``, and the image: texts by file name.

    The memory initially holds the image and samples on the board's clock: pads and wires have no
    delay.
    """
    words = [int.from_bytes(image[at:at + 2], "little") for at in range(0, len(image), 2)]
    times = SdramParams(clock_hz).picoseconds
    memory = _MODEL.format(contents=_CONTENTS, words=len(words), times=", ".join(
        f".{name}(32'd{value})" for name, value in times.items()))
    around = _TOP.format(top=top, core=CORE_MODULE, pins="", memory=memory)
    return {f"{top}.v": verilog.removesuffix(sdram_pads(top, pads)) + around,
            _CONTENTS: "".join(f"{word:04x}\n" for word in words)}
