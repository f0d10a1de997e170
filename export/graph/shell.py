"""What the lean and the float graphs share: inputs, outputs, and the recurrence over time.

Inside a graph vectors are ``[1, rows, width]``: the rows are the batch of a step graph, or
``length * batch`` of a sequence graph, time first. A state is ``[1, batch, d]``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sterna.export.graph.body import Body
from sterna.export.graph.metadata import GraphKind
from sterna.model.quantized import QuantizedModel

__all__ = ["Shell", "scan_over_time"]


class Shell:
    """The top level of one graph, from tokens and states to logits and states.

    Parameters
    ----------
    model, kind
        What is built.
    number
        Element type of logits and states: a value of ``TensorProto.DataType``.
    """

    def __init__(self, model: QuantizedModel, kind: GraphKind, number: int) -> None:
        self.model = model
        self.kind = kind
        self.body = Body()
        self.initializers: list[onnx.TensorProto] = []
        self._number = number

    def store(self, name: str, values: np.ndarray) -> str:
        """Add an initialiser; return its name."""
        self.initializers.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

    def add(self, name: str, tensor: TensorProto) -> str:
        """Add an initialiser that has no name yet; return its name."""
        tensor.name = name
        self.initializers.append(tensor)
        return name

    def rows_of(self, table: str, output: str = "") -> str:
        """The rows of ``table [vocab, d]`` for the tokens, ``[1, rows, d]``."""
        if self.kind is GraphKind.STEP:
            tokens = self.body.op("Unsqueeze", ["token", self.body.integers([0])])
        else:
            turned = self.body.op("Transpose", ["tokens"])
            tokens = self.body.op("Reshape", [turned, self.body.integers([1, -1])])
        return self.body.op("Gather", [table, tokens], output)

    def states(self, state: str) -> list[str]:
        """Cut a state ``[layers, batch, d]`` into those of the layers, ``<at>.h_in``."""
        names = [f"layer{layer}.mlgru.h_in" for layer in range(self.model.config.layers)]
        self.body.split(state, names, axis=0)
        return names

    def logits(self, z: str, output: str = "") -> str:
        """Bring ``[1, rows, vocab]`` to ``[batch, vocab]`` or ``[batch, length, vocab]``."""
        body = self.body
        if self.kind is GraphKind.STEP:
            return body.op("Squeeze", [z, body.integers([0])], output)
        batch = body.op("Shape", ["tokens"], attributes={"start": 0, "end": 1})
        shape = body.op(
            "Concat", [body.integers([-1]), batch, body.integers([self.model.config.vocab])],
            attributes={"axis": 0})
        by_time = body.op("Reshape", [z, shape])
        return body.op("Transpose", [by_time], output, attributes={"perm": [1, 0, 2]})

    def graph(self, values: list[onnx.ValueInfoProto] | None = None) -> onnx.GraphProto:
        """The graph of all that has been appended."""
        config, step = self.model.config, self.kind is GraphKind.STEP
        state = [config.layers, "batch", config.d]
        rows = ["batch"] if step else ["batch", "length"]
        value, whole = helper.make_tensor_value_info, self._number == TensorProto.INT32
        profile = self.model.profile
        return helper.make_graph(
            self.body.nodes, f"sterna_{self.kind.value}",
            [value("token" if step else "tokens", TensorProto.INT64, rows,
                   f"from 0 to {config.vocab - 1}"),
             value("state", self._number, state, "h of every layer; zeros at the start"
                   + (f"; {profile.h.frac} fraction bits" if whole else ""))],
            [value("logits", self._number, [*rows, config.vocab],
                   f"{profile.logit.frac} fraction bits" if whole else ""),
             value("state_out", self._number, state, "state for the next call")],
            initializer=self.initializers, value_info=values or [])


def scan_over_time(
    body: Body, f: str, c: str, h: str, h_next: str, d: int, number: int,
    step: Callable[[Body], object],
) -> str:
    """Run the recurrence over the rows of f and c; return h of every row.

    ``step`` appends the nodes that make ``h_after`` from ``f_t``, ``c_t`` and ``h_t``, all
    ``[batch, d]``. ``h`` is the state before, ``h_next`` becomes the one after the last row.
    """
    before = body.op("Squeeze", [h, body.integers([0])])
    shape = body.op("Concat", [body.integers([-1]), body.op("Shape", [before])],
                    attributes={"axis": 0})
    by_time = [body.op("Reshape", [name, shape]) for name in (f, c)]
    cell = Body()
    step(cell)
    cell.op("Identity", ["h_after"], "h_row")

    def channels(*names: str) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, number, ["batch", d]) for name in names]

    last, rows = f"{h_next}.last", f"{h_next}.by_time"
    body.nodes.append(helper.make_node(
        "Scan", [before, *by_time], [last, rows], name=f"{h_next}.scan", num_scan_inputs=2,
        body=helper.make_graph(cell.nodes, "recurrence", channels("h_t", "f_t", "c_t"),
                               channels("h_after", "h_row"))))
    body.op("Unsqueeze", [last, body.integers([0])], h_next)
    return body.op("Reshape", [rows, body.integers([1, -1, d])])
