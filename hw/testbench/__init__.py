"""Stimulus and expected results of a unit as plain data; a bench in Amaranth's simulator.

Units define their stimulus with it; :mod:`sterna.sim` runs it on the emitted Verilog.
"""
