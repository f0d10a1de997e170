"""The float model as a dense float32 ONNX graph: the baseline of speeds."""

from __future__ import annotations

import numpy as np
import onnx

from sterna.export.float.reference import real_scale
from sterna.export.graph.fast import FastGraph
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.plan import StagePlan

__all__ = ["build_dense"]


class _Dense(FastGraph):
    """The graph ``fast`` with dense products and standard operators."""

    def added(self, x: str, update: str) -> tuple[str, str]:
        total = self.graph.op("Add", [x, update])
        return total, self.norm(total)

    def product(self, stage: StagePlan, normed: str) -> str:
        members = stage.matrices
        own = [self.model.projections[member] for member in members]
        frac = self.model.projects[members[0]].output.frac
        weight = np.concatenate([
            each.weight * real_scale(self.model, name)
            for name, each in zip(members, own, strict=True)])
        name = "+".join(members)
        stored = self.graph.store(f"{name}.weight", weight.T.astype(np.float32))
        bias = self.real(f"{name}.bias", np.concatenate([each.bias for each in own]), frac)
        return self.graph.op("Add", [self.graph.op("MatMul", [normed, stored]), bias])


def build_dense(model: QuantizedModel) -> onnx.ModelProto:
    """Build the graph, with inputs and outputs as in the form ``fast``."""
    return _Dense(model, one_token=False).assemble()
