"""The exact graphs with few nodes: what edge devices run.

The same integers as :mod:`sterna.export.exact.traced`, with everything that depends on one small
number read from a table: the reciprocal of a maximum, a projection's output scale, the
gates and the candidate. The tables are computed inside the graph from the 64 sigmoid
segments and the scales; a runtime folds them when it loads the file, so they take no room
in it. What stays is about 100 nodes a layer.

``exact``, ``exact-2bit`` and ``web`` differ in one function, the ternary product
(:mod:`sterna.export.graph.products`). A layer is two nodes, ``MlgruLayer`` and ``GluLayer``, so
that a native library can take their place (:mod:`sterna.export.native.ops`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from sterna.export.exact.lean_functions import layer_functions
from sterna.export.graph.body import opset_imports
from sterna.export.graph.bounds import check_bounds
from sterna.export.graph.lookups import check_lookups, store_lookups
from sterna.export.graph.metadata import GraphKind
from sterna.export.graph.products import CONTRIB, Product
from sterna.export.graph.profile_numbers import PROFILE_ATTRIBUTE, profile_numbers
from sterna.export.graph.shell import Shell
from sterna.model.quantized import QuantizedModel

__all__ = ["build_lean"]


def build_lean(
    model: QuantizedModel, kind: GraphKind, product: Product,
) -> onnx.ModelProto:
    """Build the step or sequence graph of ``model`` around one way of multiplying.

    Inputs and outputs are those of :func:`sterna.export.exact.traced.build_graph`. The result has
    no metadata yet.

    Raises
    ------
    ValueError
        If an integer of the model could leave the exact range of float64, or a lookup
        table would be too long.
    """
    check_bounds(model)
    check_lookups(model)
    return helper.make_model(
        _Assembler(model, kind, product).assemble(),
        functions=layer_functions(model, kind, product),
        opset_imports=[*opset_imports(), helper.make_opsetid(CONTRIB, 1)], producer_name="sterna",
        ir_version=helper.find_min_ir_version_for(opset_imports()[:1]))


class _Assembler:
    """Puts the top level of one graph together."""

    def __init__(self, model: QuantizedModel, kind: GraphKind, product: Product) -> None:
        self.model = model
        self.product = product
        self.shell = Shell(model, kind, TensorProto.INT32)
        self.body = self.shell.body
        self.values: list[onnx.ValueInfoProto] = []
        self.attributes: dict[str, Any] = {
            PROFILE_ATTRIBUTE: list(profile_numbers(model.profile).values())}

    def assemble(self) -> onnx.GraphProto:
        reciprocals, gates, silu = store_lookups(self.body, self.shell.store, self.model)
        x = self._embed()
        before = self._cast("state", TensorProto.DOUBLE, "state.value")
        states = []
        for layer, h in enumerate(self.shell.states(before)):
            at = f"layer{layer}"
            x, h = self._call(
                "MlgruLayer", at,
                [x, h, *self._projection(f"{at}.mlgru", "f", "c", "g"),
                 *self._projection(f"{at}.mlgru", "out"), gates, reciprocals],
                [f"{at}.mlgru.x", f"{at}.mlgru.h"])
            states.append(h)
            (x,) = self._call(
                "GluLayer", at,
                [x, *self._projection(f"{at}.glu", "gate", "up"),
                 *self._projection(f"{at}.glu", "down"), silu, reciprocals],
                [f"{at}.glu.x"])
        (z,) = self._call(
            "Head", "head", [x, *self._projection("", "head"), reciprocals], ["head.z"])
        self._cast(self.shell.logits(z), TensorProto.INT32, "logits")
        after = self.body.op("Concat", states, attributes={"axis": 0})
        self._cast(after, TensorProto.INT32, "state_out")
        return self.shell.graph(self.values)

    def _embed(self) -> str:
        """Rows of the embedding, float64 ``[1, rows, d]``."""
        wide = self.model.profile.x.bits > 16
        self.shell.store(
            "embedding", self.model.embedding.astype(np.int32 if wide else np.int16))
        return self._cast(
            self.shell.rows_of("embedding"), TensorProto.DOUBLE,
            self._value("embedding.x", self.model.config.d))

    def _cast(self, value: str, kind: int, output: str) -> str:
        return self.body.op("Cast", [value], output, attributes={"to": kind})

    def _call(self, function: str, at: str, inputs: list[str], outputs: list[str]) -> list[str]:
        name = at if function == "Head" else f"{at}/{function.removesuffix('Layer').lower()}"
        self.body.call(function, inputs, outputs, name=name, attributes=self.attributes)
        self._value(outputs[0], self.model.config.vocab if function == "Head"
                    else self.model.config.d)
        return outputs

    def _value(self, name: str, width: int) -> str:
        """Record type and shape of a tensor that the reference has, too."""
        self.values.append(helper.make_tensor_value_info(
            name, TensorProto.DOUBLE, [1, "rows", width]))
        return name

    def _projection(self, at: str, *parts: str) -> list[str]:
        """Store a projection, merged from ``parts``; return weight, k, scale and bias.

        The weight as the product stores it; k and scale ``[1]`` and bias ``[rows]``, of a
        merged one ``[parts, 1]`` and ``[parts, rows of each]``.
        """
        members = [self.model.projections[f"{at}.{part}" if at else part] for part in parts]
        name = ".".join(filter(None, (at, "_".join(parts))))
        weight = self.product.store(np.concatenate([member.weight for member in members]))
        k = np.array([[float(member.k)] for member in members])
        scale = np.array([[math.ldexp(1.0, -member.shift)] for member in members])
        bias = np.stack([member.bias for member in members]).astype(np.int32)
        if len(parts) == 1:
            k, scale, bias = k[0], scale[0], bias[0]
        store = self.shell.store
        return [self.shell.add(f"{name}.weight", weight), store(f"{name}.k", k),
                store(f"{name}.scale", scale), store(f"{name}.bias", bias)]
