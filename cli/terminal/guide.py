"""What ``sterna`` alone prints: what it is, what to try first, where help is."""

from __future__ import annotations

__all__ = ["GUIDE"]

GUIDE = """\
Sterna takes a MatMul-free language model from text to silicon: an ONNX graph
and Verilog that compute the same integers, value by value.

Try first (seconds on two cores; tiny is a model that comes with Sterna):

  sterna generate tiny --prompt "The for statement" --tokens 120        2 s
  sterna report tiny --clock-mhz 100 -o build/cycles.html               2 s
  sterna demo --quick                                                  30 s

They write text with the exact ONNX graph, say where each cycle of a token goes
in gateware, and check a model from integers to Verilog, with a page to look at.
sterna demo without --quick simulates the Verilog as well, in two minutes.

  sterna doctor            what is installed, what is missing, how to get it
  sterna --help            all commands
  sterna COMMAND --help    a command: an example, and its options
"""
