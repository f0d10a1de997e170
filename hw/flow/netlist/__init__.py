"""A synthesised netlist: passes over it before place and route, and its way back to Verilog."""
