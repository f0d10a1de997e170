"""What runs a job in a simulator: compilers, the cocotb bench, and both oracles.

Nothing here knows a unit.
"""
