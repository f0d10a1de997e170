"""Amaranth generators of the gateware, and the Verilog they emit.

``emit_matrix``, ``emit_adders`` and ``emit_layer`` write Verilog of plain arrays, ``emit_verilog``
that of a unit for a language model. ``matrix_component``, ``adders_component``, ``layer_component``
and ``model_component`` give the same as Amaranth components, for a design of one's own.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {
    "FixedPoint": "sterna.model.profile",
    "TernaryMatrix": "sterna.model.layers",
    "adders_component": "sterna.hw.layers.adders",
    "emit_adders": "sterna.hw.layers.adders",
    "emit_layer": "sterna.hw.layers.emit",
    "emit_matrix": "sterna.hw.layers.emit",
    "emit_verilog": "sterna.hw.catalog",
    "layer_component": "sterna.hw.layers.emit",
    "layer_cost": "sterna.hw.flow.synth",
    "matrix_component": "sterna.hw.layers.emit",
    "model_component": "sterna.hw.catalog",
}

__all__ = ["FixedPoint", "TernaryMatrix", "adders_component", "emit_adders", "emit_layer",
           "emit_matrix", "emit_verilog", "layer_component", "layer_cost", "matrix_component",
           "model_component"]


def __getattr__(name: str) -> Any:
    # Loaded when asked for: a part of the package needs none of the others.
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
