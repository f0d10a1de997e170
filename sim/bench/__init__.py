"""Run a job in a simulator: compilers, the cocotb bench, and a faster one in C++.

Nothing here depends on a specific unit.
"""
