"""Run a job in a simulator: compilers, the cocotb bench, and both oracles.

Nothing here depends on a specific unit.
"""
