"""Simulation of the emitted Verilog, with the included benches or your own cocotb test."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
