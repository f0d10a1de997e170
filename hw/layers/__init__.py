"""Verilog of user-defined ternary matrices and layers: from plain arrays, without a model."""
