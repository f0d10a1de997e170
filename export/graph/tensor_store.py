"""The tensors and nodes of a graph under construction, and the file made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sterna.export.graph.node_builder import NodeBuilder, opset_imports
from sterna.model.quantized import Projection

__all__ = ["TensorStore", "make_proto"]


class TensorStore:
    """Collects the top level of a graph: ``nodes`` takes nodes, ``initializers`` stored tensors."""

    def __init__(self) -> None:
        self.nodes = NodeBuilder()
        self.initializers: list[onnx.TensorProto] = []

    def store(self, name: str, values: np.ndarray) -> str:
        """Add an initialiser; return its name."""
        self.initializers.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

    def add(self, name: str, tensor: TensorProto) -> str:
        """Add an initialiser that has no name yet; return its name."""
        tensor.name = name
        self.initializers.append(tensor)
        return name

    def store_projection(
        self, name: str, projections: Sequence[Projection],
        make: Callable[[np.ndarray], TensorProto],
    ) -> list[str]:
        """Add the projection ``name``, merged from ``projections``, whose rows it has in order.

        ``make`` makes the initialiser of a weight ``[rows, columns]``, without a name. Returns
        the names of weight, k, scale and bias: k and scale are ``[1]`` and bias ``[rows]``; of
        a merged one, whose members have scales of their own, ``[members, 1]`` and ``[members,
        rows of each]``.
        """
        weight = make(np.concatenate([each.weight for each in projections]))
        k = np.array([[float(each.k)] for each in projections])
        scale = np.array([[math.ldexp(1.0, -each.shift)] for each in projections])
        bias = np.stack([each.bias for each in projections]).astype(np.int32)
        if len(projections) == 1:
            k, scale, bias = k[0], scale[0], bias[0]
        return [self.add(f"{name}.weight", weight), self.store(f"{name}.k", k),
                self.store(f"{name}.scale", scale), self.store(f"{name}.bias", bias)]


def make_proto(
    graph: onnx.GraphProto, opsets: Sequence[onnx.OperatorSetIdProto],
    functions: Sequence[onnx.FunctionProto],
) -> onnx.ModelProto:
    """The file of a graph, without metadata."""
    return helper.make_model(
        graph, functions=functions, opset_imports=opsets, producer_name="sterna",
        ir_version=helper.find_min_ir_version_for(opset_imports()[:1]))
