"""The test that an emitted folder carries: its words, its code, its Makefile.

The code runs where only cocotb is installed, so nothing but the standard library is imported.
"""
