"""The compiled operators: compilation on demand, use under onnxruntime, and standalone use.

A graph holds the records of its model and their stored tensors; :func:`with_ops` gives a graph with
a single node that runs them. docs/native-ops.md explains the choice of a kernel.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array, to_array

from sterna.export.graph.metadata import RECORDS
from sterna.export.graph.weights import TILE, pack_tiles
from sterna.export.native.program import KINDS_FLAG, make_program
from sterna.model.cpp_library import CompileError, CppLibrary, NoCompilerError
from sterna.model.layers import TernaryMatrix as LayerMatrix
from sterna.model.quantized.records import records_from_json

__all__ = ["KERNEL_VARIABLE", "OPS_SOURCES", "MissingCompilerError", "OpsError", "TernaryMatrix",
           "build_ops", "kernel_name", "register_ops", "with_ops"]

OPS_SOURCES = Path(__file__).parent / "cpp"
"""The C++ sources."""

_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique",
          "-ffp-contract=off", KINDS_FLAG)
KERNEL_VARIABLE = "STERNA_KERNEL"
"""Environment variable that forces a kernel, by name."""
_DOMAIN = "sterna"
_PROGRAM = "program"


class OpsError(ValueError):
    """The library of operators cannot be built or loaded; the message says why."""


class MissingCompilerError(OpsError):
    """g++ is not installed; the message says how to install it."""


def build_ops(
    folder: str | Path | None = None, *, sources: str | Path = OPS_SOURCES,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Compile the operators with g++, unless ``folder`` already holds the same library.

    Parameters
    ----------
    folder
        Folder of the library, created if missing; None takes
        :func:`sterna.model.cache.cache_folder`.
    sources
        Folder of the C++ sources; another one in tests that plant a fault.
    progress
        Called as ``progress(done, total)`` with the number of compiled files.

    Returns
    -------
    Path
        ``sterna-ops-SOURCES-COMPILER.so``, with a hash of the sources and options and one of the
        compiler. Without a compiler any library of the same sources is accepted.

    Raises
    ------
    MissingCompilerError
        If g++ is not installed.
    OpsError
        If the sources do not compile.
    OSError
        If the folder cannot be written.
    """
    library = CppLibrary("sterna-ops", Path(sources), _FLAGS, "the operators")
    try:
        return library.build(None if folder is None else Path(folder), progress=progress)
    except NoCompilerError as error:
        raise MissingCompilerError(
            f"{error}; without the operators Sterna runs the same files, only slower") from error
    except CompileError as error:
        raise OpsError(str(error)) from error


def register_ops(options: Any, library: Path) -> None:
    """Make a session use the operators of ``library``.

    Parameters
    ----------
    options
        ``onnxruntime.SessionOptions`` of the session to create; load the result of
        :func:`with_ops` in it.
    library
        The result of :func:`sterna.export.native.ops.build_ops`.

    Raises
    ------
    OpsError
        If onnxruntime cannot load the library.
    """
    try:
        options.register_custom_ops_library(str(library.resolve()))
    except Exception as error:  # onnxruntime's exceptions derive from Exception only
        raise OpsError(
            f"{library}: onnxruntime {onnxruntime.__version__} cannot load the operators "
            f"({' '.join(str(error).split())[:300]})") from error


def with_ops(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The graph to load with the operators registered: one node that computes all of ``proto``.

    It has the inputs, the outputs and the stored tensors of ``proto``, with unchanged weights.

    Raises
    ------
    OpsError
        If ``proto`` lacks the records of a model, or a tensor that they need.
    """
    properties = {each.key: each.value for each in proto.metadata_props}
    stored = {each.name: each for each in proto.graph.initializer}

    def find(name: str) -> TensorProto:
        if name not in stored:
            raise OpsError(f"the graph has no tensor {name}")
        return stored[name]

    try:
        records = records_from_json(json.loads(properties.get(RECORDS, "null")))
        program, constants = make_program(records, lambda name: to_array(find(name)))
    except OpsError:
        raise
    except ValueError as error:
        raise OpsError(f"the graph cannot run on the operators: {error}") from error
    inputs = [each.name for each in proto.graph.input]
    node = helper.make_node(
        "Records", [*inputs, _PROGRAM, *constants], [each.name for each in proto.graph.output],
        domain=_DOMAIN, names="\n".join(each.name for each in records))
    graph = helper.make_graph(
        [node], proto.graph.name, proto.graph.input, proto.graph.output,
        [from_array(program, _PROGRAM), *map(find, constants)])
    return helper.make_model(
        graph, ir_version=proto.ir_version,
        opset_imports=[*proto.opset_import, helper.make_opsetid(_DOMAIN, 1)])


def kernel_name(library: Path, kernel: str = "") -> str:
    """The kernel that runs: by name, or (if empty) as chosen by the processor and
    ``STERNA_KERNEL``.

    Raises
    ------
    OpsError
        If the library cannot be loaded, or the kernel is unknown or cannot run here.
    """
    handle = _load(library)
    name = handle.sterna_kernel(kernel.encode())
    if name is None:
        raise OpsError(handle.sterna_error().decode())
    return str(name.decode())


class TernaryMatrix:
    """A ternary matrix, multiplied without onnxruntime: for tests and benchmarks.

    ``weight`` is ``[rows, columns]`` of -1, 0 and 1, ``kernel`` a kernel name, empty for the
    default choice. Raises OpsError if the library or the kernel cannot be used here; ValueError if
    the weight is not a matrix of trits.
    """

    def __init__(self, library: Path, weight: np.ndarray, kernel: str = "") -> None:
        weight = LayerMatrix(weight).weight
        self.rows, self.columns = weight.shape
        self._tiles = np.ascontiguousarray(pack_tiles(weight))
        self._library = _load(library)
        self._matrix = self._library.sterna_matrix(
            self._tiles.ctypes.data, self.rows, self.columns, kernel.encode())
        if not self._matrix:
            raise OpsError(self._library.sterna_error().decode())

    def __del__(self) -> None:
        if getattr(self, "_matrix", None):
            self._library.sterna_free(self._matrix)

    @property
    def packed_bytes(self) -> int:
        """Size of the packed matrix."""
        return self._tiles.nbytes

    def buffers(self, tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Zeroed acts int8 and acc int32, ``[tokens, padded to 16]``."""
        blocks, steps, *_ = self._tiles.shape
        return (np.zeros((tokens, steps * TILE), np.int8),
                np.zeros((tokens, blocks * TILE), np.int32))

    def matmul(self, acts: np.ndarray) -> np.ndarray:
        """Multiply activations int8 ``[tokens, columns]``; int32 ``[tokens, rows]``.

        Raises ValueError if the shape is wrong or an activation is not from -127 to 127.
        """
        if acts.ndim != 2 or acts.shape[1] != self.columns:
            raise ValueError(
                f"activations must be [tokens, {self.columns}], got {list(acts.shape)}")
        if acts.size and (acts.min() < -127 or acts.max() > 127):
            raise ValueError(
                f"activations must be from -127 to 127, got {acts.min()} to {acts.max()}")
        filled, acc = self.buffers(len(acts))
        filled[:, :self.columns] = acts
        self._library.sterna_matmul(
            self._matrix, filled.ctypes.data, len(filled), acc.ctypes.data)
        return acc[:, :self.rows]


def _load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path.resolve()))
    except OSError as error:
        raise OpsError(f"{path}: cannot load the operators ({error})") from error
    pointer, size, text = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p
    for name, result, arguments in (
        ("error", text, ()),
        ("kernel", text, (text,)),
        ("matrix", pointer, (pointer, size, size, text)),
        ("free", None, (pointer,)),
        ("matmul", None, (pointer, pointer, size, pointer)),
    ):
        try:
            function = getattr(library, f"sterna_{name}")
        except AttributeError as error:
            raise OpsError(f"{path}: not a library of Sterna's operators") from error
        function.restype, function.argtypes = result, arguments
    return library
