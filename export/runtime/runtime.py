"""Run graphs under onnxruntime with checked inputs, with the interface of the integer reference.

Every argument check raises ``ValueError``, for a wrong type too, and names the expected and the
given value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from sterna.export.forms.forms import build
from sterna.export.graph.builder import CONTRIB, MINIMUM_ONNXRUNTIME, OPSET
from sterna.export.graph.fast import BLOCK
from sterna.export.graph.file import OnnxFile, Source
from sterna.export.graph.metadata import Form, GraphInfo, OnnxFileError
from sterna.export.native.memory import share_weights
from sterna.export.native.ops import kernel_name, register_ops, with_ops
from sterna.model.checks import whole_number
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.entry import Entry
from sterna.model.quantized.taps import Tap, ignore

__all__ = ["OnnxModel", "check_ops_form", "has_two_bit_kernels",
           "open_session", "state_array", "thread_count",
           "two_bit_blocks", "with_taps"]

_LARGEST_REAL = 1e6
_Advance: TypeAlias = Iterator[tuple[np.ndarray, np.ndarray]]
_MOST_THREADS = 256
_FOLDER = "session.model_external_initializers_file_folder_path"
_CHUNK = 256


def open_session(
    file: OnnxFile, threads: int = 1, ops: Path | None = None,
    options: onnxruntime.SessionOptions | None = None,
) -> Any:
    """Make an ``InferenceSession`` on the CPU.

    ``ops`` is a library of custom operators; ``options`` replace the defaults, including
    ``threads``. Raises OnnxFileError if onnxruntime cannot load the graph; OpsError if the library
    or its kernel cannot be used.
    """
    proto = file.proto
    if options is None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
    if ops is not None:
        kernel_name(ops)        # clear errors for the library and STERNA_KERNEL
        register_ops(options, ops)
        proto = with_ops(proto)
    weights = None if ops is None else share_weights(file)
    if file.path is not None:
        options.add_session_config_entry(_FOLDER, str(file.path.parent))
    try:
        if weights is not None:
            weights.tell(options)
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        session.weights = weights       # keep them alive as long as it
        return session
    except Exception as error:  # onnxruntime's exceptions derive from Exception only
        reason = " ".join(str(error).split())[:300]
        raise OnnxFileError(
            f"{file.name}: onnxruntime {onnxruntime.__version__} cannot load the graph; it takes "
            f"opset {OPSET} (onnxruntime {MINIMUM_ONNXRUNTIME} or newer) and an undamaged "
            f"file ({reason})") from error


@cache
def has_two_bit_kernels(block: int = BLOCK) -> bool:
    """Whether ``MatMulNBits`` multiplies by 2-bit weights in integers here.

    Without such a kernel, which depends on onnxruntime's version and the processor, it
    converts the weights to float at every call, which is many times slower than a float product.
    The kernels round activations to 8 bits; the slow path does not, which identifies it.
    """
    # The largest activation, 1, becomes 127; a half becomes 63.5, rounded to 64.
    acts = np.array([[1.0] + [0.5] * (block - 1)], dtype=np.float32)
    codes = np.full((1, 1, block // 4), 0xFF, dtype=np.uint8)     # every weight is +1
    node = helper.make_node(
        "MatMulNBits", ["acts", "codes", "scale"], ["sum"], domain=CONTRIB, K=block, N=1,
        bits=2, block_size=block, accuracy_level=4)
    graph = helper.make_graph(
        [node], "probe",
        [helper.make_tensor_value_info("acts", TensorProto.FLOAT, [1, block])],
        [helper.make_tensor_value_info("sum", TensorProto.FLOAT, [1, 1])],
        [numpy_helper.from_array(codes, "codes"),
         numpy_helper.from_array(np.ones(1, dtype=np.float32), "scale")])
    proto = helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", 21), helper.make_opsetid(CONTRIB, 1)])
    try:
        (got,) = open_session(OnnxFile(proto, "the probe")).run(None, {"acts": acts})
    except Exception:  # an onnxruntime without 2-bit weights fails to load or run it
        return False
    return abs(float(got[0, 0]) - float(acts.sum())) > 1e-3 * block


def two_bit_blocks(proto: onnx.ModelProto) -> set[int]:
    """The block sizes of the 2-bit products in a graph."""
    return {attribute.i for node in proto.graph.node if node.op_type == "MatMulNBits"
            for attribute in node.attribute if attribute.name == "block_size"}


def with_taps(
    proto: onnx.ModelProto, names: Sequence[str] | None = None,
) -> onnx.ModelProto:
    """Copy an exact graph with inner tensors as outputs: ``names``, or all if None.

    The added outputs are in the order of computation, float64 ``[length, batch, width]``, or
    ``[batch, width]`` for a graph of one token. Raises ValueError if the graph lacks one of the
    tensors.
    """
    values = {value.name: value for value in proto.graph.value_info}
    parts = {name: _parts(name) for name in values}
    known = [part for each in parts.values() for part in each]
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise ValueError(
            f"the graph has no tensor called {unknown[0]!r}; its tensors have names "
            f"like {known[0]!r} and {known[-1]!r}")
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.value_info[:]
    for name, value in values.items():
        wanted = [part for part in parts[name] if names is None or part in names]
        if len(parts[name]) > 1 and wanted:
            _append_parts(copy.graph, name, parts[name], values)
        copy.graph.output.extend(value if part == name else onnx.ValueInfoProto(
            name=part, type=helper.make_tensor_type_proto(TensorProto.DOUBLE, None))
            for part in wanted)
        if not wanted:
            copy.graph.value_info.append(value)
    return copy


def _parts(name: str) -> list[str]:
    """The tensors concatenated in the value ``name``."""
    stem, _, kind = name.rpartition(".")
    return [f"{member}.{kind}" for member in stem.split("+")] if "+" in stem else [name]


def _append_parts(
    graph: onnx.GraphProto, name: str, parts: Sequence[str],
    values: Mapping[str, onnx.ValueInfoProto],
) -> None:
    """Append nodes that split the value ``name``; a scale has one number for all rows."""
    rows = [values[f"{part.rpartition('.')[0]}.z"].type.tensor_type.shape.dim[-1].dim_value
            for part in parts]
    scales = name.endswith(".a")
    sizes, first = f"{name}.sizes", f"{name}.first"
    graph.initializer.append(numpy_helper.from_array(np.array(rows), sizes))
    outputs = [f"{part}.rows" for part in parts] if scales else list(parts)
    graph.node.append(helper.make_node("Split", [name, sizes], outputs, axis=-1))
    if scales:
        graph.initializer.append(numpy_helper.from_array(np.array([0]), first))
        graph.node.extend(helper.make_node("Gather", [output, first], [part], axis=-1)
                          for output, part in zip(outputs, parts, strict=True))


class OnnxModel:
    """A graph under onnxruntime; checks its inputs, and can replace ``IntegerModel``.

    Parameters
    ----------
    source
        Path of an ONNX file, or the graph itself; for a quantised model its exact graph is built.
    threads
        Threads that one operator may use.
    taps
        Inner tensors to compute as well, by their names in the integer reference; None
        takes all of them.
    ops
        Library of native operators.
    options
        Replaces the default options of onnxruntime; ``threads`` is then ignored.

    Raises
    ------
    OnnxFileError
        If the file cannot be read, is not a Sterna graph, or onnxruntime is too old.
    ValueError
        If threads is not from 1 to 256 or a tap is unknown.

    >>> from sterna.model.quantized import load_model
    >>> from sterna.model.quantized.taps import TapRecorder
    >>> recorder = TapRecorder()
    >>> graph = OnnxModel(load_model("tiny"), taps=["layer0.mlgru.f.z"])
    >>> _ = graph.run(np.array([[72, 105]]), tap=recorder)
    >>> recorder["layer0.mlgru.f.z"].shape      # tokens, batch, channels
    (2, 1, 128)
    """

    def __init__(
        self, source: Source | QuantizedModel, *, threads: int = 1,
        taps: Sequence[str] | None = (), ops: Path | None = None,
        options: onnxruntime.SessionOptions | None = None,
    ) -> None:
        threads = thread_count(threads)
        if isinstance(source, QuantizedModel):
            source = build(source)
        file = OnnxFile.read(source)
        self.info = file.info
        last = self.info.entry.result
        proto = with_taps(
            file.proto, None if taps is None else [tap for tap in taps if tap != last])
        self._session = open_session(replace(file, proto=proto), threads, ops, options)
        self._taps = [each.name for each in self._session.get_outputs()][2:]
        # Numbers if options or the file fix an axis, else names.
        batch, length = self._session.get_inputs()[0].shape[:2]
        self.batch: int | None = batch if isinstance(batch, int) else None
        """Sequences of every call, if their number is fixed."""
        if length not in (1, "length"):
            raise OnnxFileError(
                f"{file.name}: {length} tokens a call are fixed: free their number, or fix it to 1")
        self._most = 1 if length == 1 else _CHUNK

    def start(self, batch: int = 1) -> np.ndarray:
        """The state at the start of a sequence: zeros ``[layers, batch, d]``, int32, or float32
        for a float form."""
        layers, d = self.info.shape
        return np.zeros((layers, whole_number("batch", batch, 0), d), self._state_type)

    def run(
        self, tokens: np.ndarray, state: np.ndarray | None = None, tap: Tap = ignore,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run a row of tokens for each sequence, up to 256 per call: memory grows with them.

        ``tokens`` whole numbers ``[batch, length]``, ``state`` ``[layers, batch, d]`` or None
        for the start. ``tap`` is called with every requested tensor, int64, and with the logits,
        once per token. Returns logits ``[batch, length, vocab]`` and the last state ``[layers,
        batch, d]``: int32, or float32 in real units for float forms. ValueError if a shape is
        wrong, a token outside the vocabulary or the state outside its format.
        """
        rows = []
        for part in self._advance(tokens, state, 0, tap):
            rows.append(part[0])
        return np.concatenate(rows, axis=1), part[1]

    def prefill(
        self, tokens: np.ndarray, state: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`run`, but return only the logits after the last token, ``[batch, vocab]``, and
        the last state."""
        (logits, state), = deque(self._advance(tokens, state, -1), maxlen=1)
        return logits[:, -1], state

    def step(
        self, tokens: np.ndarray, state: np.ndarray, tap: Tap = ignore,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Advance every sequence by one of ``tokens [batch]``, as in :meth:`run`.

        Returns logits ``[batch, vocab]`` and the new state.
        """
        column = self.info.entry.array(tokens, ["batch"])[:, None]
        logits, state = self.run(column, state, tap)
        return logits[:, 0], state

    def _advance(
        self, tokens: np.ndarray, state: np.ndarray | None, logits_from: int, tap: Tap = ignore,
    ) -> _Advance:
        """The logits and the state after each call."""
        entry = self.info.entry
        tokens = entry.array(tokens, ["batch", "length"])
        if entry.shape:
            tokens = tokens.astype(np.int32)
        if self.batch not in (None, len(tokens)):
            raise ValueError(f"the number of sequences is fixed to {self.batch}, got {len(tokens)}")
        state = self.start(len(tokens)) if state is None else state
        feeds = {} if self.info.one_token else {f"{entry.result}_from": np.array([logits_from])}
        for first in range(0, tokens.shape[1], self._most):
            state = state_array(state, self.info, len(tokens))
            logits, state, *taps = self._session.run(None, feeds | {
                entry.name: tokens[:, first:first + self._most],
                "state": state.astype(self._state_type, copy=False)})
            for t in range(logits.shape[1]):
                for name, value in zip(self._taps, taps, strict=True):
                    tap(name, (value if self.info.one_token else value[t]).astype(np.int64))
                tap(entry.result, logits[:, t].astype(np.int64))
            yield logits, state

    @property
    def _state_type(self) -> type[np.generic]:
        return np.int32 if self.info.exact else np.float32


def state_array(state: object, info: GraphInfo, batch: int | None = None) -> np.ndarray:
    """A state ``[layers, batch, d]`` of the graph that ``info`` describes, as an array.

    Raises ValueError if shape or type are wrong, or a value is outside the format of h.
    """
    try:
        array = np.asarray(state)
    except ValueError as error:     # NumPy rejects rows of different lengths
        raise ValueError(
            "state must be numbers [layers, batch, d], got rows of different lengths") from error
    layers, d = info.shape
    right = array.ndim == 3 and (array.shape[0], array.shape[2]) == (layers, d)
    kinds, numbers = ("iu", "whole") if info.exact else ("f", "real")
    if not right or batch not in (None, array.shape[1]) or array.dtype.kind not in kinds:
        raise ValueError(
            f"state must be {numbers} numbers [layers, batch, d] = "
            f"[{layers}, {'batch' if batch is None else batch}, {d}], "
            f"got {array.dtype} {list(array.shape)}")
    h = info.state_format
    # A float state is a convex combination of candidates, which do not saturate.
    low, high = (h.min, h.max) if info.exact else (-_LARGEST_REAL, _LARGEST_REAL)
    if array.size and not low <= array.min() <= array.max() <= high:
        raise ValueError(f"state must be from {low} to {high}, got {array.min()} to {array.max()}")
    return array


# Arguments ----------------------------------------------------------------------------


def thread_count(threads: int) -> int:
    """The checked number of threads of one operator, from 1 to 256."""
    return whole_number("threads", threads, 1, _MOST_THREADS)


def check_ops_form(form: Form, entry: Entry, name: str) -> None:
    """Refuse a library of operators for a form other than ``exact``, or for a network."""
    if form is not Form.EXACT:
        raise ValueError(
            f"{name}: the library of operators goes only with the form exact, got {form.value}")
    if entry.shape:
        raise ValueError(
            f"{name}: the library of operators is for language models, and this is a network over "
            f"{entry}")
