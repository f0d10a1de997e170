"""What the graphs of all forms share: inputs, outputs, weights, and the recurrence over time.

In lookup and float graphs vectors are ``[1, rows, width]``: the rows are the batch of a step
graph, or ``length * batch`` of a sequence graph, time first. A state is ``[1, batch, d]``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from sterna.export.graph.metadata import GraphKind
from sterna.export.graph.node_builder import NodeBuilder
from sterna.export.graph.tensor_store import TensorStore, make_proto
from sterna.model.quantized import QuantizedModel

__all__ = ["GraphBuilder", "merged", "scan_over_time"]


class GraphBuilder(TensorStore):
    """Puts the top level of one graph together, from tokens and states to logits and states.

    Parameters
    ----------
    model, kind
        What is built.
    number
        Element type of logits and states: a value of ``TensorProto.DataType``.
    """

    def __init__(self, model: QuantizedModel, kind: GraphKind, number: int) -> None:
        super().__init__()
        self.model = model
        self.kind = kind
        self._number = number

    def store_embedding(self) -> str:
        """Add the embedding as the integers it is, ``[vocab, d]``; return its name."""
        wide = self.model.profile.x.bits > 16
        return self.store(
            "embedding", self.model.embedding.astype(np.int32 if wide else np.int16))

    def rows_of(self, table: str, output: str = "") -> str:
        """The rows of ``table [vocab, d]`` for the tokens, ``[1, rows, d]``."""
        if self.kind is GraphKind.STEP:
            tokens = self.nodes.op("Unsqueeze", ["token", self.nodes.integers([0])])
        else:
            turned = self.nodes.op("Transpose", ["tokens"])
            tokens = self.nodes.op("Reshape", [turned, self.nodes.integers([1, -1])])
        return self.nodes.op("Gather", [table, tokens], output)

    def states(self, state: str) -> list[str]:
        """Cut a state ``[layers, batch, d]`` into those of the layers, ``<at>.h_in``."""
        names = [f"layer{layer}.mlgru.h_in" for layer in range(self.model.config.layers)]
        self.nodes.split(state, names, axis=0)
        return names

    def logits(self, z: str, output: str = "") -> str:
        """Bring ``[1, rows, vocab]`` to ``[batch, vocab]`` or ``[batch, length, vocab]``."""
        nodes = self.nodes
        if self.kind is GraphKind.STEP:
            return nodes.op("Squeeze", [z, nodes.integers([0])], output)
        batch = nodes.op("Shape", ["tokens"], attributes={"start": 0, "end": 1})
        shape = nodes.op(
            "Concat", [nodes.integers([-1]), batch, nodes.integers([self.model.config.vocab])],
            attributes={"axis": 0})
        by_time = nodes.op("Reshape", [z, shape])
        return nodes.op("Transpose", [by_time], output, attributes={"perm": [1, 0, 2]})

    def model_proto(
        self, opsets: Sequence[onnx.OperatorSetIdProto], *,
        functions: Sequence[onnx.FunctionProto] = (),
        values: Sequence[onnx.ValueInfoProto] = (), state_text: str = "",
    ) -> onnx.ModelProto:
        """The model of all that has been appended, without metadata.

        ``values`` are types and shapes of inner tensors, ``state_text`` describes the state.
        """
        return make_proto(self._graph(values, state_text), opsets, functions)

    def _graph(
        self, values: Sequence[onnx.ValueInfoProto], state_text: str,
    ) -> onnx.GraphProto:
        config, step = self.model.config, self.kind is GraphKind.STEP
        state = [config.layers, "batch", config.d]
        rows = ["batch"] if step else ["batch", "length"]
        value, whole = helper.make_tensor_value_info, self._number == TensorProto.INT32
        profile = self.model.profile
        state_text = state_text or "h of every layer; zeros at the start" + (
            f"; {profile.h.frac} fraction bits" if whole else "")
        return helper.make_graph(
            self.nodes.protos, f"sterna_{self.kind.value}",
            [value("token" if step else "tokens", TensorProto.INT64, rows,
                   f"from 0 to {config.vocab - 1}"),
             value("state", self._number, state, state_text)],
            [value("logits", self._number, [*rows, config.vocab],
                   f"{profile.logit.frac} fraction bits" if whole else ""),
             value("state_out", self._number, state, "state for the next call")],
            initializer=self.initializers, value_info=values)


def merged(at: str, parts: Sequence[str]) -> tuple[str, list[str]]:
    """The name of projections of ``at`` that share their input, side by side, and theirs.

    >>> merged("layer0.glu", ["gate", "up"])
    ('layer0.glu.gate_up', ['layer0.glu.gate', 'layer0.glu.up'])
    >>> merged("", ["head"])
    ('head', ['head'])
    """
    begin = f"{at}." if at else ""
    return begin + "_".join(parts), [begin + part for part in parts]


def scan_over_time(
    nodes: NodeBuilder, f: str, c: str, h: str, h_next: str, d: int, number: int,
    step: Callable[[NodeBuilder], object],
) -> str:
    """Run the recurrence over the rows of f and c; return h of every row.

    ``step`` appends the nodes that make ``h_after`` from ``f_t``, ``c_t`` and ``h_t``, all
    ``[batch, d]``. ``h`` is the state before, ``h_next`` becomes the one after the last row.
    """
    before = nodes.op("Squeeze", [h, nodes.integers([0])])
    shape = nodes.op("Concat", [nodes.integers([-1]), nodes.op("Shape", [before])],
                    attributes={"axis": 0})
    by_time = [nodes.op("Reshape", [name, shape]) for name in (f, c)]
    cell = NodeBuilder()
    step(cell)
    cell.op("Identity", ["h_after"], "h_row")

    def channels(*names: str) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, number, ["batch", d]) for name in names]

    last, rows = f"{h_next}.last", f"{h_next}.by_time"
    nodes.protos.append(helper.make_node(
        "Scan", [before, *by_time], [last, rows], name=f"{h_next}.scan", num_scan_inputs=2,
        body=helper.make_graph(cell.protos, "recurrence", channels("h_t", "f_t", "c_t"),
                               channels("h_after", "h_row"))))
    nodes.op("Unsqueeze", [last, nodes.integers([0])], h_next)
    return nodes.op("Reshape", [rows, nodes.integers([1, -1, d])])
