"""From Verilog to a placed and routed netlist and a bitstream, with tools from pip."""
