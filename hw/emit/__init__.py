"""From a component to a folder: Verilog, its texts, the tools that write and count it.

Nothing here knows a unit.
"""
