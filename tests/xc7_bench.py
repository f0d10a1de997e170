"""Runs emitted Verilog beside our models of the vendor cells, one set of inputs per clock."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from sterna.hw.emit.tools import verilator_environment

CELLS = files("sterna.hw.emit.cells") / "xc7.v"

_BENCH = """
module bench;
  reg clk = 0;
  reg [{width}-1:0] stimuli [0:{cycles}-1];
  reg [{width}-1:0] inputs;
  wire [{out_width}-1:0] result;
  integer cycle, log;
  {top} dut ({ports});
  initial begin
    $readmemh("stimuli.hex", stimuli);
    log = $fopen("results.txt", "w");
    for (cycle = 0; cycle < {cycles}; cycle = cycle + 1) begin
      inputs = stimuli[cycle];
      #1 clk = 1;
      #1 $fdisplay(log, "%b", result);
      clk = 0;
    end
    $fclose(log);
    $finish;
  end
endmodule
"""


def run_verilog(
    folder: Path, text: str, top: str, inputs: Mapping[str, int], output: tuple[str, int],
    stimuli: Sequence[Mapping[str, int]], *, clocked: bool = True,
) -> list[str]:
    """Return the bits of ``output`` after the rising edge of each clock.

    ``inputs`` gives the width of every input; a stimulus has a value for each. With Icarus,
    or with Verilator where it is not installed.
    """
    low, places = 0, {}
    for name, width in inputs.items():
        places[name] = low
        low += width
    words = [sum((stimulus[name] & ((1 << width) - 1)) << places[name]
                 for name, width in inputs.items()) for stimulus in stimuli]
    ports = [f".{name}(inputs[{places[name]}+:{width}])" for name, width in inputs.items()]
    ports += [f".{output[0]}(result)"] + [".clk(clk)"] * clocked
    (folder / "stimuli.hex").write_text("".join(f"{word:x}\n" for word in words))
    (folder / "design.v").write_text(text)
    (folder / "cells.v").write_text(CELLS.read_text())
    (folder / "bench.v").write_text(_BENCH.format(
        width=low, cycles=len(words), out_width=output[1], top=top, ports=", ".join(ports)))
    sources = ["bench.v", "design.v", "cells.v"]
    if shutil.which("iverilog"):
        commands = [["iverilog", "-g2001", "-s", "bench", "-o", "bench.vvp", *sources],
                    ["vvp", "-n", "bench.vvp"]]
        environment = None
    else:
        commands = [["verilator", "--binary", "--timing", "-Wno-fatal", "--top", "bench",
                     "--Mdir", "built", *sources], ["built/Vbench"]]
        environment = verilator_environment()
    for command in commands:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True,
                              text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    return (folder / "results.txt").read_text().split()
