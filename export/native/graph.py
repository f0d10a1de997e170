"""The graph to load with the compiled operators: the exact graph, a layer a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sterna.export.graph.builder import GraphBuilder, model_proto
from sterna.export.graph.metadata import GraphInfo
from sterna.export.graph.weights import unpack_tiles
from sterna.model.config import ModelConfig
from sterna.model.profile import NumericProfile
from sterna.model.quantized.file import pack_trits
from sterna.model.quantized.integer import rs, saturate, sigmoid
from sterna.model.quantized.records import Project, shape_and_profile

__all__ = ["DOMAIN", "layer_tables", "operator_graph", "profile_numbers"]

DOMAIN = "sterna"
_FORMATS = ("x", "z", "h", "o", "p", "logit")
_WIDTHS = ("reciprocal_bits", "root_frac", "scale_frac", "mantissa_bits", "scale_bits",
           "sigmoid_frac", "sigmoid_segments")


def operator_graph(proto: onnx.ModelProto, *, two_bit: bool) -> onnx.ModelProto:
    """Build the graph of operators with the inputs, outputs and tensors of an exact one.

    Its weights are 2-bit integers, or else bytes. The model must be of Sterna's own architecture.
    """
    info = GraphInfo.read(proto)
    found = shape_and_profile(tuple(info.records), info.profile)
    assert found is not None
    return _Assembler(proto, info, *found, two_bit).assemble()


class _Assembler:
    """Puts one graph together; vectors are float64 ``[length, batch, width]``."""

    def __init__(
        self, proto: onnx.ModelProto, info: GraphInfo, config: ModelConfig,
        profile: NumericProfile, two_bit: bool,
    ) -> None:
        self.info, self.config, self.two_bit = info, config, two_bit
        self.graph = GraphBuilder()
        self.numbers = profile_numbers(profile)
        self.stored = {each.name: each for each in proto.graph.initializer}
        gates, silu = layer_tables(profile, self._values("sigmoid.table").astype(np.int64))
        self.gates, self.silu = self.graph.store("gates", gates), self.graph.store("silu", silu)

    def assemble(self) -> onnx.ModelProto:
        graph, d, layers = self.graph, self.config.d, self.config.layers
        graph.initializers.append(self.stored["embedding"])
        rows = graph.op("Gather", ["embedding", graph.op("Transpose", ["tokens"])])
        x = graph.cast(rows, TensorProto.DOUBLE)
        kept = [f"h{layer}" for layer in range(layers)]
        graph.op("Split", [graph.cast("state", TensorProto.DOUBLE)], *kept, axis=0,
                 num_outputs=layers)
        after = []
        for layer, h in enumerate(kept):
            at = f"layer{layer}"
            y, last = f"{at}.mlgru.x", f"{at}.mlgru.h"
            self._call("MlgruLayer", [x, h], [y, last],
                       [[f"{at}.mlgru.{gate}" for gate in "fcg"], [f"{at}.mlgru.out"]], self.gates)
            after.append(last)
            if layer == layers - 1 and not self.info.one_token:
                ends = graph.integers(np.iinfo(np.int64).max)
                y = graph.op("Slice", [y, "logits_from", ends, graph.integers(0)])
            x = f"{at}.glu.x"
            self._call("GluLayer", [y], [x],
                       [[f"{at}.glu.gate", f"{at}.glu.up"], [f"{at}.glu.down"]], self.silu)
        self._call("Head", [x], ["head.z"], [["head"]])
        logits = graph.op("Transpose", ["head.z"], perm=[1, 0, 2])
        graph.cast(logits, TensorProto.INT32, "logits")
        graph.cast(graph.concat(after, 0), TensorProto.INT32, "state_out")
        made = model_proto(graph, self.config.vocab, (layers, d), TensorProto.INT32,
                           self.info.one_token)
        made.opset_import.append(helper.make_opsetid(DOMAIN, 1))
        if self.two_bit:        # which the first opset with 2-bit integers asks for
            made.opset_import[0].version, made.ir_version = 25, 13
        return made

    def _call(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str],
        products: Sequence[Sequence[str]], *tables: str,
    ) -> None:
        attributes: dict[str, Any] = {"domain": DOMAIN, **self.numbers}
        stored = [name for members in products for name in self._projection(members)]
        # The last input is read by no operator.
        self.graph.op(operator, [*inputs, *stored, *tables, self.graph.constant([[0.0]])],
                      *outputs, **attributes)

    def _projection(self, members: Sequence[str]) -> list[str]:
        """Store projections side by side: weight ``[columns, rows]``, k, scale and bias."""
        biases = [self._values(f"{name}.bias") for name in members]
        columns = next(record.columns for record in self.info.records
                       if isinstance(record, Project) and record.name == members[0])
        weight = np.concatenate([
            unpack_tiles(self._values(f"{name}.weight"), bias.size, columns)
            for name, bias in zip(members, biases, strict=True)]).T
        name = "+".join(members)
        if self.two_bit:
            self.graph.initializers.append(TensorProto(
                name=f"{name}.weight", data_type=TensorProto.INT2, dims=weight.shape,
                raw_data=pack_trits(weight).tobytes()))
        else:
            self.graph.store(f"{name}.weight", weight)
        k = np.concatenate([self._values(f"{each}.k") for each in members])
        scale = 1 / np.concatenate([self._values(f"{each}.divisor") for each in members])
        return [f"{name}.weight", self.graph.store(f"{name}.k", k),
                self.graph.store(f"{name}.scale", scale),
                self.graph.store(f"{name}.bias", np.concatenate(biases))]

    def _values(self, name: str) -> np.ndarray:
        return np.asarray(numpy_helper.to_array(self.stored[name]))


def profile_numbers(profile: NumericProfile) -> dict[str, int]:
    """``x_bits``, ``x_frac`` and so on of every format, then the widths: attributes of a node."""
    formats = {f"{name}_{part}": getattr(getattr(profile, name), part)
               for name in _FORMATS for part in ("bits", "frac")}
    return formats | {name: getattr(profile, name) for name in _WIDTHS}


def layer_tables(profile: NumericProfile, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the layers look up by z, float64: forget gate, candidate and output gate one after
    the other, as fractions; and the SiLU."""
    z = np.arange(profile.z.min, profile.z.max + 1)
    s = sigmoid(z, table, profile.z.min, profile.sigmoid_step_bits)
    c = saturate(rs(z * s, profile.candidate_shift), profile.h)
    gates = [s * 2.0 ** -profile.sigmoid_frac, c, s * 2.0 ** -profile.output_shift]
    return np.concatenate(gates), rs(z * s, profile.sigmoid_frac) * 2.0 ** -profile.product_shift
