"""Operators that torch's exporter does not translate, or not for all numbers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

__all__ = ["Translations", "translations"]

Translations: TypeAlias = dict[Callable[..., Any], Callable[..., Any]]


def translations() -> Translations:
    """For ``torch.onnx.export``: what an operator becomes."""
    from onnxscript import opset18 as op

    def stable_sort(x: Any, *, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
        """``TopK`` of all: of equals it takes the one that comes first."""
        size = op.Gather(op.Shape(x), op.Constant(value_ints=[dim]), axis=0)
        return op.TopK(x, size, axis=dim, largest=int(descending), sorted=1)

    def floor_division(left: Any, right: Any) -> Any:
        """Of whole numbers, also below zero, as in ``-(-n // block)``: the exporter's own is for
        those above."""
        return op.Div(op.Sub(left, op.Mod(left, right)), right)

    return {operator.floordiv: floor_division, torch.ops.aten.sort.stable: stable_sort}
