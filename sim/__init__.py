"""Simulation of the emitted Verilog against the integer reference."""
