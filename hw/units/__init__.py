"""The units: parameters and gateware of each in one file or a few.

A unit that can be emitted by itself has a file ``..._product.py`` with its sizes, the texts of its
folder and its stimulus, as defined in :mod:`sterna.hw.units.spec` and listed in
:mod:`sterna.hw.catalog`.
"""
