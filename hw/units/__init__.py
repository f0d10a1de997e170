"""The units, a folder each: parameters, gateware, texts of its folder, stimulus.

:mod:`sterna.hw.units.spec` says what a unit is; :mod:`sterna.hw.catalog` lists them.
"""
