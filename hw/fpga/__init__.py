"""FPGA families and devices, and netlists of their primitives."""
