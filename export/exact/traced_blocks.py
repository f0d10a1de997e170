"""What a traced graph is made of, between its inputs and its outputs.

The functions of :mod:`sterna.export.exact.projection_functions` and ``mixer_functions`` are
called here with the names of the integer reference. Projections that read the same vector are
one matrix; the name of that is the last part of ``at.f``, ``at.c`` and ``at.g`` in one, as
:data:`sterna.export.graph.taps.MERGED` has it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from sterna.export.exact.mixer_functions import sigmoid_inputs
from sterna.export.graph.products import store_trits
from sterna.export.graph.tensor_store import TensorStore
from sterna.model.profile import FixedPoint, NumericProfile
from sterna.model.quantized import Projection

__all__ = ["TracedBlocks"]


class TracedBlocks:
    """Appends the steps of the integer reference to a graph.

    Parameters
    ----------
    store
        The graph.
    profile
        Numeric formats.
    lead
        Leading axes of every vector.

    Attributes
    ----------
    values
        Types and shapes of the tensors that have names of their own.
    """

    def __init__(self, store: TensorStore, profile: NumericProfile, lead: Sequence[str]) -> None:
        self._store = store
        self._lead = lead
        self._tables = sigmoid_inputs(profile)
        self.values: list[onnx.ValueInfoProto] = []

    def store_tables(self, sigmoid: np.ndarray) -> None:
        """Store the tables that the two mixers read."""
        table = sigmoid.astype(np.float64)
        for name, values in zip(("sigmoid.table", "sigmoid.rise"), (table, np.diff(table)),
                                strict=True):
            if name in self._tables:
                self._store.store(name, values)

    def store_limits(self, name: str, fmt: FixedPoint) -> list[str]:
        """Store the ends of a format, which :meth:`requantized` takes."""
        return [self._store.store(f"{name}.min", np.array(float(fmt.min))),
                self._store.store(f"{name}.max", np.array(float(fmt.max)))]

    def value(self, name: str, width: int) -> str:
        """Record type and shape of a tensor that has a name of its own."""
        self.values.append(helper.make_tensor_value_info(
            name, TensorProto.DOUBLE, [*self._lead, width]))
        return name

    def block(
        self, function: str, inputs: list[str], outputs: dict[str, int], node: str,
    ) -> list[str]:
        """Append a call; ``outputs`` are names and widths."""
        names = [self.value(name, width) for name, width in outputs.items()]
        self._store.nodes.call(function, inputs, names, name=node.replace(".", "/"))
        return names

    def product(
        self, norm: str, y: str, name: str, projections: Sequence[Projection],
    ) -> list[str]:
        """Normalise y and multiply; return acc, v, k, scale, bias."""
        columns = projections[0].weight.shape[1]
        rows = sum(each.weight.shape[0] for each in projections)
        widths = {"m": 1, "r": 1, "q": columns, "s": 1, "n": 1, "v": 1}
        self.block("NormQuant", [y], {f"{norm}.{part}": w for part, w in widths.items()}, norm)
        weight, *scales = self._store.store_projection(name, projections, store_trits)
        (acc,) = self.block("TernaryMatMul", [f"{norm}.q", weight], {f"{name}.acc": rows},
                            f"{name}.matmul")
        return [acc, f"{norm}.v", *scales]

    def requantized(
        self, norm: str, y: str, name: str, projections: Sequence[Projection],
        limits: list[str],
    ) -> str:
        """Normalise, multiply, and bring all projections to one format."""
        rows = sum(each.weight.shape[0] for each in projections)
        inputs = [*self.product(norm, y, name, projections), *limits]
        outputs = {f"{name}.a": rows, f"{name}.z": rows}
        return self.block("Requantise", inputs, outputs, f"{name}.requantise")[1]

    def gates(self, at: str, z: str, d: int) -> list[str]:
        """Forget gate, output gate and candidate of the merged pre-activations z."""
        return self.block(
            "MlgruGates", [z, *self._tables],
            {f"{at}.f.sigmoid": d, f"{at}.g.sigmoid": d, f"{at}.c.silu": d}, f"{at}.gates")

    def state(self, at: str, f: str, c: str, before: str, d: int) -> str:
        """The state after one token."""
        return self.block("MlgruState", [f, c, before], {f"{at}.h": d}, f"{at}.state")[0]

    def output(self, at: str, g: str, h: str, d: int) -> str:
        """What the output projection of an MLGRU reads."""
        return self.block("MlgruOutput", [g, h], {f"{at}.o": d}, f"{at}.output")[0]

    def glu_product(self, at: str, z: str, dff: int) -> str:
        """The product of the merged pre-activations of a GLU."""
        return self.block("GluProduct", [z, *self._tables],
                          {f"{at}.gate.silu": dff, f"{at}.p": dff}, f"{at}.product")[1]
