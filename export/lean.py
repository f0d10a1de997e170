"""The exact graphs with few nodes: what edge devices run.

The same integers as :mod:`sterna.export.traced`, with everything that depends on one small
number read from a table: the reciprocal of a maximum, a projection's output scale, the
gates and the candidate. The tables are computed inside the graph from the 64 sigmoid
segments and the scales; a runtime folds them when it loads the file, so they take no room
in it. What stays is about 100 nodes a layer.

``exact``, ``exact-2bit`` and ``web`` differ in one function, the ternary product
(:mod:`sterna.export.products`). A layer is two nodes, ``MlgruLayer`` and ``GluLayer``, so
that a native library can take their place (:mod:`sterna.export.native_ops`).
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sterna.export.body import Body, opset_imports
from sterna.export.bounds import check_bounds
from sterna.export.lean_functions import layer_functions
from sterna.export.lookups import check_lookups, store_lookups
from sterna.export.metadata import GraphKind
from sterna.export.products import CONTRIB, Product
from sterna.model.quantized import QuantizedModel

__all__ = ["build_lean"]

_FORMATS = ("x", "z", "h", "o", "p", "logit")


def build_lean(
    model: QuantizedModel, kind: GraphKind, product: Product,
) -> onnx.ModelProto:
    """Build the step or sequence graph of ``model`` around one way of multiplying.

    Inputs and outputs are those of :func:`sterna.export.traced.build_graph`. The result has
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
        self.kind = kind
        self.product = product
        self.body = Body()
        self.initializers: list[onnx.TensorProto] = []
        self.values: list[onnx.ValueInfoProto] = []
        profile = model.profile
        formats = [value for name in _FORMATS for value in asdict(getattr(profile, name)).values()]
        self.attributes: dict[str, Any] = {"profile": [
            *formats, profile.reciprocal_bits, profile.root_frac, profile.scale_frac,
            profile.mantissa_bits, profile.scale_bits, profile.sigmoid_frac,
            profile.sigmoid_segments]}

    def assemble(self) -> onnx.GraphProto:
        config = self.model.config
        reciprocals, gates, silu = store_lookups(self.body, self._store, self.model)
        x = self._embed()
        self.body.op("Cast", ["state"], "state.value", attributes={"to": TensorProto.DOUBLE})
        states = [f"layer{layer}.mlgru.h" for layer in range(config.layers)]
        self.body.split("state.value", [f"{state}_in" for state in states], axis=0)
        for layer, state in enumerate(states):
            at = f"layer{layer}"
            x, _ = self._call(
                "MlgruLayer", at,
                [x, f"{state}_in", *self._projection(f"{at}.mlgru", "f", "c", "g"),
                 *self._projection(f"{at}.mlgru", "out"), gates, reciprocals],
                [f"{at}.mlgru.x", state])
            (x,) = self._call(
                "GluLayer", at,
                [x, *self._projection(f"{at}.glu", "gate", "up"),
                 *self._projection(f"{at}.glu", "down"), silu, reciprocals],
                [f"{at}.glu.x"])
        (z,) = self._call(
            "Head", "head", [x, *self._projection("", "head"), reciprocals], ["head.z"])
        self._logits(z)
        self.body.op("Concat", states, "state_out.value", attributes={"axis": 0})
        self.body.op("Cast", ["state_out.value"], "state_out",
                     attributes={"to": TensorProto.INT32})
        return helper.make_graph(
            self.body.nodes, f"sterna_{self.kind.value}", *self._interface(),
            initializer=self.initializers, value_info=self.values)

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

    # Stored tensors ----------------------------------------------------------------

    def _store(self, name: str, values: np.ndarray) -> str:
        self.initializers.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

    def _projection(self, at: str, *parts: str) -> list[str]:
        """Store a projection, merged from ``parts``; return weight, k, scale and bias.

        The weight as the product stores it; k and scale ``[1]`` and bias ``[rows]``, of a
        merged one ``[parts, 1]`` and ``[parts, rows of each]``.
        """
        members = [self.model.projections[f"{at}.{part}" if at else part] for part in parts]
        name = ".".join(filter(None, (at, "_".join(parts))))
        weight = self.product.store(np.concatenate([member.weight for member in members]))
        weight.name = f"{name}.weight"
        self.initializers.append(weight)
        k = np.array([[float(member.k)] for member in members])
        scale = np.array([[math.ldexp(1.0, -member.shift)] for member in members])
        bias = np.stack([member.bias for member in members]).astype(np.int32)
        if len(parts) == 1:
            k, scale, bias = k[0], scale[0], bias[0]
        return [f"{name}.weight", self._store(f"{name}.k", k),
                self._store(f"{name}.scale", scale), self._store(f"{name}.bias", bias)]

    # Interface ---------------------------------------------------------------------

    def _embed(self) -> str:
        """Rows of the embedding, float64 ``[1, rows, d]``; time comes first in a sequence."""
        wide = self.model.profile.x.bits > 16
        self._store("embedding", self.model.embedding.astype(np.int32 if wide else np.int16))
        if self.kind is GraphKind.STEP:
            tokens = self.body.op("Unsqueeze", ["token", self.body.integers([0])])
        else:
            turned = self.body.op("Transpose", ["tokens"])
            tokens = self.body.op("Reshape", [turned, self.body.integers([1, -1])])
        row = self.body.op("Gather", ["embedding", tokens], "embedding.row")
        return self.body.op("Cast", [row], self._value("embedding.x", self.model.config.d),
                            attributes={"to": TensorProto.DOUBLE})

    def _logits(self, z: str) -> None:
        if self.kind is GraphKind.STEP:
            z = self.body.op("Squeeze", [z, self.body.integers([0])])
        else:
            batch = self.body.op("Shape", ["tokens"], attributes={"start": 0, "end": 1})
            shape = self.body.op(
                "Concat", [self.body.integers([-1]), batch,
                           self.body.integers([self.model.config.vocab])],
                attributes={"axis": 0})
            z = self.body.op("Reshape", [z, shape])
            z = self.body.op("Transpose", [z], attributes={"perm": [1, 0, 2]})
        self.body.op("Cast", [z], "logits", attributes={"to": TensorProto.INT32})

    def _interface(self) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
        config, step = self.model.config, self.kind is GraphKind.STEP
        state = [config.layers, "batch", config.d]
        rows = ["batch"] if step else ["batch", "length"]
        value = helper.make_tensor_value_info
        return (
            [value("token" if step else "tokens", TensorProto.INT64, rows,
                   f"from 0 to {config.vocab - 1}"),
             value("state", TensorProto.INT32, state,
                   f"h of every layer, {self.model.profile.h.frac} fraction bits; zeros at "
                   "the start")],
            [value("logits", TensorProto.INT32, [*rows, config.vocab],
                   f"{self.model.profile.logit.frac} fraction bits"),
             value("state_out", TensorProto.INT32, state, "state for the next call")])
