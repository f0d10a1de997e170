"""Opening a graph in onnxruntime, and what its kernels can do."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from sterna.export.graph.metadata import OnnxFileError
from sterna.export.graph.node_builder import MINIMUM_ONNXRUNTIME, OPSET
from sterna.export.graph.products import BLOCK, CONTRIB
from sterna.export.native.ops import kernel_name, register_ops, with_ops

__all__ = ["has_two_bit_kernels", "open_session", "two_bit_blocks"]


def open_session(
    proto: onnx.ModelProto, name: str, threads: int = 1, ops: Path | None = None,
    options: onnxruntime.SessionOptions | None = None,
) -> Any:
    """Make an ``InferenceSession`` on the CPU.

    ``ops`` is a library of custom operators; ``options`` take the place of ours, with their
    own number of threads.

    Raises
    ------
    OnnxFileError
        If onnxruntime cannot load the graph; the message begins with ``name``.
    OpsError
        If the library or its kernel cannot be used.
    """
    if options is None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
    if ops is not None:
        kernel_name(ops)        # what is wrong with the library or STERNA_KERNEL, it says clearly
        register_ops(options, ops)
        proto = with_ops(proto)
    try:
        return onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises classes of its own, all from Exception
        reason = " ".join(str(error).split())[:300]
        raise OnnxFileError(
            f"{name}: onnxruntime {onnxruntime.__version__} cannot load the graph; it takes "
            f"opset {OPSET} (onnxruntime {MINIMUM_ONNXRUNTIME} or newer) and an undamaged "
            f"file ({reason})") from error


@cache
def has_two_bit_kernels(block: int = BLOCK) -> bool:
    """Whether ``MatMulNBits`` multiplies by 2-bit weights in integers here.

    Without such a kernel, which depends on onnxruntime's version and the processor, it
    makes the weights float at every call, which is many times slower than a float product. The
    kernels round activations to 8 bits; the slow way does not, which gives it away.
    """
    # Of the largest activation, 1, which becomes 127, a half is 63.5 and becomes 64.
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
        (got,) = open_session(proto, "the probe").run(None, {"acts": acts})
    except Exception:  # an onnxruntime that knows no 2-bit weights refuses to load or to run it
        return False
    return abs(float(got[0, 0]) - float(acts.sum())) > 1e-3 * block


def two_bit_blocks(proto: onnx.ModelProto) -> set[int]:
    """The block sizes of the 2-bit products in a graph."""
    nodes = [*proto.graph.node, *(node for each in proto.functions for node in each.node)]
    return {attribute.i for node in nodes if node.op_type == "MatMulNBits"
            for attribute in node.attribute if attribute.name == "block_size"}
