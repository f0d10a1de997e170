"""Amaranth generators of the gateware, and the Verilog they emit.

``emit_matrix``, ``emit_adders`` and ``emit_layer`` write Verilog of plain arrays, ``emit_verilog``
that of a unit for a language model. ``matrix_component``, ``adders_component``, ``layer_component``
and ``model_component`` give the same as Amaranth components, for a design of one's own.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
