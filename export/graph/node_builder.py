"""Writing the nodes of an ONNX graph or model-local function, one line each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from sterna.model.profile import FixedPoint

__all__ = ["DOMAIN", "MINIMUM_ONNXRUNTIME", "OPSET", "NodeBuilder", "opset_imports"]

OPSET = 25
"""The first opset with 2-bit integers."""
MINIMUM_ONNXRUNTIME = "1.24"
"""The first onnxruntime that loads it."""
DOMAIN = "sterna"


def opset_imports() -> list[onnx.OperatorSetIdProto]:
    """The operator sets that every Sterna graph and function uses."""
    return [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]


class NodeBuilder:
    """Appends nodes in the order of computation; most methods return the name of their result.

    The nodes are those of a graph, of a model-local function or of the body of a ``Scan``;
    ``protos`` holds them.
    """

    def __init__(self) -> None:
        self.protos: list[onnx.NodeProto] = []
        self._constants: dict[tuple[int, str], str] = {}
        self._unnamed = 0

    def op(
        self, op_type: str, inputs: Sequence[str], output: str = "", *,
        attributes: Mapping[str, Any] | None = None, name: str = "", domain: str = "",
        further: Sequence[str] = (),
    ) -> str:
        """Append an operator, a standard one unless ``domain`` is given; return its output.

        Empty names are filled in. ``further`` names outputs after the first.
        """
        output = output or self._fresh(op_type)
        self.protos.append(helper.make_node(
            op_type, list(inputs), [output, *further], name=name or output, domain=domain,
            **(attributes or {})))
        return output

    def split(self, value: str, outputs: Sequence[str], axis: int = -1) -> None:
        """Cut an axis of ``value`` into equal parts."""
        self.protos.append(helper.make_node(
            "Split", [value], list(outputs), name=f"split_{value}", axis=axis,
            num_outputs=len(outputs)))

    def call(
        self, function: str, inputs: Sequence[str], outputs: Sequence[str], *, name: str = "",
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Append a call of the model-local function ``function``."""
        self.protos.append(helper.make_node(
            function, list(inputs), list(outputs), name=name or f"{function}_{outputs[0]}",
            domain=DOMAIN, **(attributes or {})))

    def constant(
        self, value: float | int | Sequence[float], kind: int = TensorProto.DOUBLE,
    ) -> str:
        """A constant, emitted once for each value and type."""
        key = (kind, repr(value))
        if key not in self._constants:
            name = self._fresh("constant")
            tensor = helper.make_tensor(name, kind, np.shape(value), np.ravel(value).tolist())
            self.protos.append(helper.make_node(
                "Constant", [], [name], name=name, value=tensor))
            self._constants[key] = name
        return self._constants[key]

    def integers(self, values: Sequence[int]) -> str:
        """A constant int64 vector: a shape, axes or pads."""
        return self.constant(list(values), TensorProto.INT64)

    def power(self, exponent: int) -> str:
        """The constant ``2**exponent``, exact in float64."""
        return self.constant(math.ldexp(1.0, exponent))

    def round(self, value: str, output: str = "") -> str:
        """``floor(value + 1/2)``."""
        return self.op("Floor", [self.op("Add", [value, self.constant(0.5)])], output)

    def rs(self, value: str, shift: int, output: str = "") -> str:
        """Shift right by ``shift`` bits, rounding half up."""
        if shift == 0:
            return self.op("Identity", [value], output)
        return self.round(self.op("Mul", [value, self.power(-shift)]), output)

    def cast(self, value: str, kind: int, output: str = "") -> str:
        """``value`` as another element type, a value of ``TensorProto.DataType``."""
        return self.op("Cast", [value], output, attributes={"to": kind})

    def saturate(self, value: str, fmt: FixedPoint, output: str = "") -> str:
        """Clip a whole number in float64 to the range of ``fmt``."""
        return self.op("Clip", [
            value, self.constant(float(fmt.min)), self.constant(float(fmt.max))], output)

    def function(
        self, name: str, inputs: Sequence[str], outputs: Sequence[str], text: str,
        attributes: Sequence[str] = (), further: Sequence[onnx.OperatorSetIdProto] = (),
    ) -> onnx.FunctionProto:
        """The model-local function made of the nodes so far; ``text`` says what it computes.

        ``attributes`` are the names of those it takes, ``further`` operator sets beside ours.
        """
        return helper.make_function(
            DOMAIN, name, list(inputs), list(outputs), self.protos,
            [*opset_imports(), *further], attributes=list(attributes), doc_string=text)

    def _fresh(self, op_type: str) -> str:
        self._unnamed += 1
        return f"{op_type.lower()}_{self._unnamed}"
