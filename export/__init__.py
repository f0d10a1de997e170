"""ONNX: forms of a model for edge runtimes, any ternary layer alone, and running them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {
    "Session": "sterna.export.runtime.session",
    "TernaryMatrix": "sterna.model.layers",
    "check_layer": "sterna.export.layers.file",
    "export_layer": "sterna.export.layers.file",
    "export_matrix": "sterna.export.layers.file",
}

__all__ = ["Session", "TernaryMatrix", "check_layer", "export_layer", "export_matrix"]


def __getattr__(name: str) -> Any:
    # Loaded when asked for: other modules of this package need no onnxruntime session.
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
