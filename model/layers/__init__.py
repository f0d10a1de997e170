"""Standalone ternary layers, made from plain arrays: no model file, no torch.

A layer is a frozen object of integers that runs on the integer reference; ``export`` writes it
as ONNX, ``hw`` as Verilog.
"""

from sterna.model.layers.layer import (
    BitLinearLayer,
    GluLayer,
    InputLayer,
    Layer,
    MlgruLayer,
    ResidualLayer,
    SequentialLayer,
)
from sterna.model.layers.matrix import MatrixLayer, TernaryMatrix

__all__ = ["BitLinearLayer", "GluLayer", "InputLayer", "Layer", "MatrixLayer", "MlgruLayer",
           "ResidualLayer", "SequentialLayer", "TernaryMatrix"]
