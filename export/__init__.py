"""ONNX: forms of a model for edge runtimes, and running them."""

from __future__ import annotations

from typing import Any

__all__ = ["Session"]


def __getattr__(name: str) -> Any:
    # Loaded when asked for: other modules of this package need no onnxruntime session.
    if name == "Session":
        from sterna.export.runtime.session import Session
        return Session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
