"""Amaranth generators of the gateware, and the Verilog they emit."""
