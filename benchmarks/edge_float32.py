"""The float model as a dense float32 ONNX graph: the baseline of speeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from sterna.export.graph.fast import FastGraph
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.records import Add, Project

__all__ = ["build_dense"]


class _Dense(FastGraph):
    """The graph ``fast`` with dense products and standard operators."""

    def added(self, record: Add, normed: str) -> None:
        super().added(record, "")
        if normed:
            self.direction(record.name, normed)

    def product(self, records: Sequence[Project], normed: str, output: str = "") -> str:
        weight = np.concatenate([
            self.model.projections[record.name].weight * self.real.scales[record.name]
            for record in records])
        name = "+".join(record.name for record in records)
        stored = self.graph.store(f"{name}.weight", weight.T.astype(np.float32))
        return self.graph.op("Add", [
            self.graph.op("MatMul", [normed, stored]), self.bias(records)], output)


def build_dense(model: QuantizedModel) -> onnx.ModelProto:
    """Build the graph, with inputs and outputs as in the form ``fast``."""
    return _Dense(model, one_token=False).assemble()
