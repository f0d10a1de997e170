"""What is sent to a unit and must come back, as plain data; a bench in Amaranth's simulator.

Units describe their stimulus with it; :mod:`sterna.sim` runs it on the emitted Verilog.
"""
