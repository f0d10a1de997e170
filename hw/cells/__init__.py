"""Verilog models of the vendor cells that Sterna instantiates, for simulators."""
