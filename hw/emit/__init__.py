"""Emission of a component to a folder of Verilog and documents.

Nothing here depends on a specific unit.
"""
