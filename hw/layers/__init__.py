"""Verilog of a ternary matrix or layer of one's own: from plain arrays, without a model."""
