"""The MLGRU recurrence as a graph computes it: one operator instead of an unrolled loop."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper
from torch import Tensor
from torch._higher_order_ops.scan import scan

__all__ = ["has_linear_attention", "linear_attention", "scanned"]

_DOMAIN = "com.microsoft"
"""Where onnxruntime has the operator, which is a standard one from opset 27 on."""


def scanned(forget: Tensor, candidate: Tensor, initial: Tensor) -> Tensor:
    """:func:`sterna.model.network.recurrence.mlgru_scan` by the standard operator ``Scan``."""
    def turn(hidden: Tensor, at: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        gate, added = at
        hidden = gate * hidden + added
        return hidden, hidden.clone()

    states: Tensor = scan(turn, initial, (forget, (1 - forget) * candidate))[1]
    return states


def linear_attention(forget: Tensor, candidate: Tensor, initial: Tensor) -> Tensor:
    """The same by ``LinearAttention`` with the rule ``gated``, ``S = exp(g) S + k v``, ``y = q S``.

    Every channel is a head of width 1 with ``q = 1``, ``k = 1 - f``, ``v = c`` and ``g = log f``,
    which is exact for f = 0, too. Only to be traced: torch does not have the operator.
    """
    time, batch, d = forget.shape
    key, value, decay = (each.transpose(0, 1) for each in (1 - forget, candidate, forget.log()))
    states, _ = torch.onnx.ops.symbolic_multi_out(
        f"{_DOMAIN}::LinearAttention",
        (torch.ones_like(key), key, value, initial.reshape(batch, d, 1, 1), decay),
        {"q_num_heads": d, "kv_num_heads": d, "scale": 1.0, "update_rule": "gated"},
        dtypes=(forget.dtype, forget.dtype), shapes=((batch, time, d), (batch, d, 1, 1)),
        version=1)
    return states.transpose(0, 1)


@cache
def has_linear_attention() -> bool:
    """Whether onnxruntime has ``LinearAttention``: one tiny graph tells."""
    names = ("query", "key", "value", "past_state", "decay")
    shapes = ([1, 1, 1],) * 3 + ([1, 1, 1, 1], [1, 1, 1])
    node = helper.make_node(
        "LinearAttention", names, ("output", "present_state"), domain=_DOMAIN, q_num_heads=1,
        kv_num_heads=1, scale=1.0, update_rule="gated")
    graph = helper.make_graph(
        [node], "probe",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
         for name, shape in zip(names, shapes, strict=True)],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, 1, 1])])
    model = helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", 20), helper.make_opsetid(_DOMAIN, 1)])
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"])
        feed = {name: np.ones(shape, dtype=np.float32)
                for name, shape in zip(names, shapes, strict=True)}
        return bool(session.run(None, feed)[0].item() > 1)
    except Exception as error:  # onnxruntime's exceptions share no class but this one
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        return False
