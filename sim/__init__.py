"""Simulation of the emitted Verilog, by its own benches and by your own cocotb test."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
