"""The traced graphs: the integer reference, tensor for tensor, in ONNX operators.

The form to look inside: every tensor of the reference is a value of the graph, under the same
name. The forms for use (:mod:`sterna.export.forms.forms`) have fewer nodes.

The step and the sequence graph come from the same code and differ in their leading axes,
``[batch]`` and ``[length, batch]``, and in the recurrence, which is one function call or a
``Scan`` of it. Length comes first inside the sequence graph, as ``Scan`` wants it, and last
but one in its inputs and outputs.

Weights are stored as 2-bit integers and become int8 when a runtime loads the graph.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from sterna.export.exact.bounds import check_bounds
from sterna.export.exact.mixer_functions import traced_mixers
from sterna.export.exact.projection_functions import traced_projection
from sterna.export.exact.traced_blocks import TracedBlocks
from sterna.export.graph.graph_builder import GraphBuilder
from sterna.export.graph.metadata import Form, GraphKind, describe
from sterna.export.graph.node_builder import NodeBuilder, opset_imports
from sterna.export.graph.taps import MERGED
from sterna.model.quantized import Projection, QuantizedModel

__all__ = ["build_graph", "build_sequence", "build_step"]


def build_step(model: QuantizedModel) -> onnx.ModelProto:
    """Build the graph that advances every sequence of a batch by one token.

    Inputs: ``token`` int64 ``[batch]``, each below ``vocab``, and ``state`` int32
    ``[layers, batch, d]``, zeros at the start of a sequence. Outputs: ``logits`` int32
    ``[batch, vocab]`` and ``state_out`` int32 ``[layers, batch, d]``.

    Raises
    ------
    ValueError
        If an integer of the model could leave the exact range of float64.
    """
    return _described(model, GraphKind.STEP)


def build_sequence(model: QuantizedModel) -> onnx.ModelProto:
    """Build the graph that runs a whole row of tokens for every sequence of a batch.

    Inputs: ``tokens`` int64 ``[batch, length]`` and ``state`` int32 ``[layers, batch, d]``.
    Outputs: ``logits`` int32 ``[batch, length, vocab]`` and ``state_out`` int32
    ``[layers, batch, d]`` after the last token.

    Raises
    ------
    ValueError
        If an integer of the model could leave the exact range of float64.
    """
    return _described(model, GraphKind.SEQUENCE)


def build_graph(model: QuantizedModel, kind: GraphKind) -> onnx.ModelProto:
    """Build the step or the sequence graph of ``model``, without metadata yet."""
    check_bounds(model)
    return _Assembler(model, kind).assemble()


def _described(model: QuantizedModel, kind: GraphKind) -> onnx.ModelProto:
    proto = build_graph(model, kind)
    describe(proto, model, kind, Form.TRACED)
    return proto


class _Assembler:
    """Puts the top level of one graph together; value names are those of the reference."""

    def __init__(self, model: QuantizedModel, kind: GraphKind) -> None:
        self.model = model
        self.config = model.config
        self.profile = model.profile
        self.kind = kind
        self.graph = GraphBuilder(model, kind, TensorProto.INT32)
        self.nodes = self.graph.nodes
        self.blocks = TracedBlocks(
            self.graph, model.profile,
            ["batch"] if kind is GraphKind.STEP else ["length", "batch"])
        self.z_limits: list[str] = []

    def assemble(self) -> onnx.ModelProto:
        self.blocks.store_tables(self.model.sigmoid)
        self.z_limits = self.blocks.store_limits("z", self.profile.z)
        x = self._embed()
        self.nodes.op("Cast", ["state"], "state.value", name="state/in",
                     attributes={"to": TensorProto.DOUBLE})
        states = []
        for layer in range(self.config.layers):
            x, h = self._mlgru(layer, x)
            states.append(h)
            x = self._glu(layer, x)
        self._head(x)
        self.nodes.op("Concat", states, "state_out.value", name="state/stack",
                     attributes={"axis": 0})
        self.nodes.op("Cast", ["state_out.value"], "state_out", name="state/out",
                     attributes={"to": TensorProto.INT32})
        return self.graph.model_proto(
            opset_imports(), values=self.blocks.values,
            functions=[*traced_projection(self.profile), *traced_mixers(self.profile)],
            state_text=f"h of every layer, {self.profile.h.frac} fraction bits; zeros at the start")

    def _projections(self, name: str) -> list[Projection]:
        """Those of one matrix of the graph: several where they read the same vector."""
        at, _, group = name.rpartition(".")
        members = [f"{at}.{part}" for part in MERGED[group]] if group in MERGED else [name]
        return [self.model.projections[member] for member in members]

    def _embed(self) -> str:
        table = self.graph.store_embedding()
        tokens = "token"
        if self.kind is GraphKind.SEQUENCE:
            tokens = self.nodes.op("Transpose", ["tokens"], "tokens.by_time",
                                  name="embedding/tokens")
        row = self.nodes.op("Gather", [table, tokens], "embedding.row",
                           name="embedding/row")
        return self.nodes.op("Cast", [row], self.blocks.value("embedding.x", self.config.d),
                            name="embedding/cast", attributes={"to": TensorProto.DOUBLE})

    def _requantized(self, norm: str, y: str, name: str, limits: list[str]) -> str:
        return self.blocks.requantized(norm, y, name, self._projections(name), limits)

    def _added(self, at: str, norm: str, y: str, part: str, x: str) -> str:
        d, name = self.config.d, f"{at}.{part}"
        inputs = [x, *self.blocks.product(f"{at}.{norm}", y, name, self._projections(name))]
        outputs = {f"{name}.a": 1, f"{name}.z": d, f"{at}.x": d}
        return self.blocks.block("ResidualAdd", inputs, outputs, f"{at}.residual")[2]

    def _mlgru(self, layer: int, x: str) -> tuple[str, str]:
        at, d = f"layer{layer}.mlgru", self.config.d
        z = self._requantized(f"{at}.norm", x, f"{at}.fcg", self.z_limits)
        f, g, c = self.blocks.gates(at, z, d)
        index = self.graph.store(f"{at}.index", np.array(layer, dtype=np.int64))
        before = self.nodes.op("Gather", ["state.value", index], f"{at}.h_in",
                              name=f"layer{layer}/mlgru/h_in")
        h, last = self._recurrence(at, f, c, before)
        axis = self.graph.store(f"{at}.axis", np.array([0], dtype=np.int64))
        self.nodes.op("Unsqueeze", [last, axis], f"{at}.h_out",
                     name=f"layer{layer}/mlgru/h_out")
        o = self.blocks.output(at, g, h, d)
        return self._added(at, "out_norm", o, "out", x), f"{at}.h_out"

    def _recurrence(self, at: str, f: str, c: str, before: str) -> tuple[str, str]:
        """Return h of every token, and of the last one alone."""
        d = self.config.d
        if self.kind is GraphKind.STEP:
            h = self.blocks.state(at, f, c, before, d)
            return h, h

        def channel_values(*names: str) -> list[onnx.ValueInfoProto]:
            return [helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["batch", d])
                    for name in names]

        cell = NodeBuilder()
        cell.call("MlgruState", ["f", "c", "h"], ["h_next"], name="state")
        cell.op("Identity", ["h_next"], "h_row", name="row")
        scan = helper.make_graph(
            cell.protos, "recurrence", channel_values("h", "f", "c"),
            channel_values("h_next", "h_row"))
        self.nodes.protos.append(helper.make_node(
            "Scan", [before, f, c], [f"{at}.h_last", self.blocks.value(f"{at}.h", d)],
            name=f"{at}.state".replace(".", "/"), body=scan, num_scan_inputs=2))
        return f"{at}.h", f"{at}.h_last"

    def _glu(self, layer: int, x: str) -> str:
        at = f"layer{layer}.glu"
        z = self._requantized(f"{at}.norm", x, f"{at}.gate_up", self.z_limits)
        p = self.blocks.glu_product(at, z, self.config.dff)
        return self._added(at, "down_norm", p, "down", x)

    def _head(self, x: str) -> None:
        limits = self.blocks.store_limits("logit", self.profile.logit)
        z = self._requantized("head.norm", x, "head", limits)
        if self.kind is GraphKind.SEQUENCE:
            z = self.nodes.op("Transpose", [z], "head.by_sequence", name="head/by_sequence",
                             attributes={"perm": [1, 0, 2]})
        self.nodes.op("Cast", [z], "logits", name="head/logits",
                     attributes={"to": TensorProto.INT32})
