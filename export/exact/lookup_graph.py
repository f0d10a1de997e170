"""The lookup graphs: exact, with few nodes; what edge devices run.

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

from typing import Any

import onnx
from onnx import TensorProto, helper

from sterna.export.exact.bounds import check_bounds, folds_biases
from sterna.export.exact.lookups import check_lookups, scale_table, store_lookups
from sterna.export.exact.mixer_functions import lookup_mixers
from sterna.export.exact.projection_functions import lookup_projection
from sterna.export.graph.graph_builder import GraphBuilder, merged
from sterna.export.graph.metadata import GraphKind
from sterna.export.graph.node_builder import opset_imports
from sterna.export.graph.products import CONTRIB, Product
from sterna.export.graph.profile_numbers import PROFILE_ATTRIBUTE, profile_numbers
from sterna.model.quantized import QuantizedModel

__all__ = ["build_lookup_graph"]


def build_lookup_graph(
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
    return _Assembler(model, kind, product).assemble()


class _Assembler:
    """Puts the top level of one graph together."""

    def __init__(self, model: QuantizedModel, kind: GraphKind, product: Product) -> None:
        self.model = model
        self.product = product
        self.graph = GraphBuilder(model, kind, TensorProto.INT32)
        self.nodes = self.graph.nodes
        self.values: list[onnx.ValueInfoProto] = []
        self.attributes: dict[str, Any] = {
            PROFILE_ATTRIBUTE: list(profile_numbers(model.profile).values())}

    def assemble(self) -> onnx.ModelProto:
        reciprocals, gates, silu = store_lookups(self.nodes, self.graph.store, self.model)
        x = self._embed()
        before = self.nodes.cast("state", TensorProto.DOUBLE, "state.value")
        states = []
        for layer, h in enumerate(self.graph.states(before)):
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
        self.nodes.cast(self.graph.logits(z), TensorProto.INT32, "logits")
        after = self.nodes.op("Concat", states, attributes={"axis": 0})
        self.nodes.cast(after, TensorProto.INT32, "state_out")
        return self.graph.model_proto(
            [*opset_imports(), helper.make_opsetid(CONTRIB, 1)], functions=self._functions(),
            values=self.values)

    def _functions(self) -> list[onnx.FunctionProto]:
        config, profile = self.model.config, self.model.profile
        d, dff, vocab = config.d, config.dff, config.vocab
        shapes = [(d, 3 * d), (d, d), (d, 2 * dff), (dff, d), (d, vocab)]
        return [
            *self.product.functions(shapes), scale_table(profile),
            *lookup_projection(profile, fold_bias=folds_biases(self.model)),
            *lookup_mixers(self.model, self.graph.kind, self.product)]

    def _embed(self) -> str:
        """Rows of the embedding, float64 ``[1, rows, d]``."""
        rows = self.graph.rows_of(self.graph.store_embedding())
        return self.nodes.cast(
            rows, TensorProto.DOUBLE, self._value("embedding.x", self.model.config.d))

    def _call(self, function: str, at: str, inputs: list[str], outputs: list[str]) -> list[str]:
        name = at if function == "Head" else f"{at}/{function.removesuffix('Layer').lower()}"
        self.nodes.call(function, inputs, outputs, name=name, attributes=self.attributes)
        self._value(outputs[0], self.model.config.vocab if function == "Head"
                    else self.model.config.d)
        return outputs

    def _value(self, name: str, width: int) -> str:
        """Record type and shape of a tensor that the reference has, too."""
        self.values.append(helper.make_tensor_value_info(
            name, TensorProto.DOUBLE, [1, "rows", width]))
        return name

    def _projection(self, at: str, *parts: str) -> list[str]:
        """Store a projection, merged from ``parts``; return weight, k, scale and bias."""
        name, members = merged(at, parts)
        return self.graph.store_projection(
            name, [self.model.projections[member] for member in members], self.product.store)
