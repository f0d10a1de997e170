"""Recurrences by one operator, ``LinearAttention``: standard from opset 27 on; onnxruntime has it.

It computes ``S = exp(g) S + k v^T``, ``y = q^T S`` for each head (rule ``gated``), or the same
without g (``linear``). torch does not have it, so these functions are only to be traced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper
from torch import Tensor

from sterna.model.mixers.linear.sums import CHUNK, EPS, causal_by_sums
from sterna.model.network.recurrence import matrix_scan, mlgru_scan

__all__ = ["by_linear_attention", "has_linear_attention"]

_DOMAIN, _NAME = "com.microsoft", "LinearAttention"


@contextmanager
def by_linear_attention() -> Iterator[None]:
    """Inside, the recurrences that the operator can compute are computed by it."""
    with ExitStack() as stack:
        stack.enter_context(mlgru_scan.by(_mlgru))
        stack.enter_context(matrix_scan.by(_matrix))
        stack.enter_context(causal_by_sums.by(_sums))
        yield


def _operator(q: Tensor, k: Tensor, v: Tensor, past: Tensor, decay: Tensor | None = None) -> tuple[
        Tensor, Tensor]:
    """``q``, ``k`` and ``decay [batch, time, heads, k]``, ``v [batch, time, heads, v]``, ``past
    [batch, heads, k, v]`` to ``y`` like ``v`` and the last state."""
    batch, time, heads, width = v.shape
    inputs = [each.flatten(-2) for each in (q, k, v)] + [past]
    if decay is not None:
        inputs.append(decay.flatten(-2))
    y, last = torch.onnx.ops.symbolic_multi_out(
        f"{_DOMAIN}::{_NAME}", inputs,
        {"q_num_heads": heads, "kv_num_heads": heads, "scale": 1.0,
         "update_rule": "linear" if decay is None else "gated"},
        dtypes=(v.dtype, v.dtype), shapes=((batch, time, heads * width), tuple(past.shape)),
        version=1)
    return y.unflatten(-1, (heads, width)), last


def _mlgru(forget: Tensor, candidate: Tensor, initial: Tensor) -> Tensor:
    """Every channel is a head of width 1 with ``q = 1``, ``k = 1 - f``, ``v = c``, ``g = log f``;
    f = 0 is exact, too."""
    f, c = (each.transpose(0, 1).unsqueeze(-1) for each in (forget, candidate))
    y, _ = _operator(torch.ones_like(f), 1 - f, c, initial.unflatten(-1, (-1, 1, 1)), f.log())
    return y.squeeze(-1).transpose(0, 1)


def _matrix(
    query: Tensor, forget: Tensor, key: Tensor, value: Tensor, initial: Tensor,
) -> tuple[Tensor, Tensor]:
    q, f, k, v = (each.transpose(0, 1) for each in (query, forget, key, value))
    y, last = _operator(q, k, v, initial, f.log())
    return y.transpose(0, 1), last


def _sums(
    q: Tensor, k: Tensor, v: Tensor, values: Tensor, keys: Tensor, *, chunk: int = CHUNK,
) -> tuple[Tensor, Tensor, Tensor]:
    """A value that is always 1 gives the sum of the scores, and its state that of the keys."""
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))      # [batch, time, heads, ...]
    v = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
    y, last = _operator(q, k, v, torch.cat([values, keys.unsqueeze(-1)], dim=-1))
    mixed = y[..., :-1] / (y[..., -1:] + EPS)
    return mixed.transpose(1, 2), last[..., :-1], last[..., -1]


@cache
def has_linear_attention() -> bool:
    """Whether onnxruntime has the operator: a tiny graph tells."""
    names = ("query", "key", "value", "past_state", "decay")
    shapes = [[1] * (4 if name == "past_state" else 3) for name in names]
    node = helper.make_node(
        _NAME, names, ("output", "present_state"), domain=_DOMAIN, q_num_heads=1, kv_num_heads=1,
        scale=1.0, update_rule="gated")
    graph = helper.make_graph(
        [node], "probe",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
         for name, shape in zip(names, shapes, strict=True)],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, 1, 1])])
    model = helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", 20), helper.make_opsetid(_DOMAIN, 1)])
    feed = {name: np.ones(shape, dtype=np.float32)
            for name, shape in zip(names, shapes, strict=True)}
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"])
        return bool(np.isclose(session.run(None, feed)[0].item(), np.e + 1))
    except Exception as error:  # onnxruntime's errors share no class but this one
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        return False
