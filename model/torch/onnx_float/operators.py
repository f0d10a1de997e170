"""Operators that a graph computes differently from torch: recurrences, and gaps of the exporter.

A Python loop would be unrolled for one number of tokens. While tracing a graph, it is replaced by
the standard operator ``Scan``, or by onnxruntime's ``LinearAttention``, standard from opset 27 on.
The latter computes ``S = exp(g) S + k v^T``, ``y = q^T S`` for each head (rule ``gated``), or the
same without g (``linear``). torch does not have it, so these functions can only be traced.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan

from sterna.model.torch.mixers.linear import CHUNK, EPS, causal_by_sums
from sterna.model.torch.network.recurrence import Pair, complex_scan, matrix_scan, mlgru_scan

__all__ = ["has_linear_attention", "recurrences_for_graphs", "translations"]


@contextmanager
def recurrences_for_graphs(*, use_linear_attention: bool = False) -> Iterator[None]:
    """Context in which the recurrences of mixers are computed by ``Scan``, or by
    ``LinearAttention`` where possible."""
    with ExitStack() as stack:
        stack.enter_context(complex_scan.by(_scanned_complex))
        if use_linear_attention:
            stack.enter_context(mlgru_scan.by(_mlgru))
            stack.enter_context(matrix_scan.by(_matrix))
            stack.enter_context(causal_by_sums.by(_sums))
        else:
            stack.enter_context(mlgru_scan.by(_scanned_mlgru))
            stack.enter_context(matrix_scan.by(_scanned_matrix))
        yield


def _scanned_mlgru(forget: Tensor, candidate: Tensor, initial: Tensor) -> Tensor:
    """:func:`sterna.model.torch.network.recurrence.mlgru_scan`."""
    def turn(hidden: Tensor, at: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        gate, added = at
        hidden = gate * hidden + added
        return hidden, hidden.clone()

    states: Tensor = scan(turn, initial, (forget, (1 - forget) * candidate))[1]
    return states


def _scanned_matrix(
    query: Tensor, forget: Tensor, key: Tensor, value: Tensor, initial: Tensor,
) -> tuple[Tensor, Tensor]:
    """:func:`sterna.model.torch.network.recurrence.matrix_scan`."""
    def turn(state: Tensor, at: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        q, f, k, v = at
        state = f.unsqueeze(-1) * state + k.unsqueeze(-1) * v.unsqueeze(-2)
        return state, (q.unsqueeze(-2) @ state).squeeze(-2)

    last, outputs = scan(turn, initial, (query, forget, key, value))
    return outputs, last


def _scanned_complex(multiplier: Pair, added: Pair, initial: Pair) -> Pair:
    """:func:`sterna.model.torch.network.recurrence.complex_scan`."""
    gain_re, gain_im = multiplier

    def turn(state: list[Tensor], at: Pair) -> tuple[list[Tensor], Pair]:
        (re, im), (to_re, to_im) = state, at
        state = [gain_re * re - gain_im * im + to_re, gain_re * im + gain_im * re + to_im]
        return state, (state[0].clone(), state[1].clone())

    states: Pair = scan(turn, list(initial), added)[1]
    return states


def _operator(q: Tensor, k: Tensor, v: Tensor, past: Tensor, decay: Tensor | None = None) -> tuple[
        Tensor, Tensor]:
    """``q``, ``k`` and ``decay [batch, time, heads, k]``, ``v [batch, time, heads, v]``, ``past
    [batch, heads, k, v]`` to ``y`` like ``v`` and the last state."""
    batch, time, heads, width = v.shape
    inputs = [each.flatten(-2) for each in (q, k, v)] + [past]
    if decay is not None:
        inputs.append(decay.flatten(-2))
    y, last = torch.onnx.ops.symbolic_multi_out(
        "com.microsoft::LinearAttention", inputs,
        {"q_num_heads": heads, "kv_num_heads": heads, "scale": 1.0,
         "update_rule": "linear" if decay is None else "gated"},
        dtypes=(v.dtype, v.dtype), shapes=((batch, time, heads * width), tuple(past.shape)),
        version=1)
    return y.unflatten(-1, (heads, width)), last


def _mlgru(forget: Tensor, candidate: Tensor, initial: Tensor) -> Tensor:
    """Every channel is a head of width 1 with ``q = 1``, ``k = 1 - f``, ``v = c``, ``g = log f``;
    also exact for f = 0."""
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
    """A constant value of 1 gives the sum of the scores, and its state the sum of the keys."""
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))      # [batch, time, heads, ...]
    v = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
    y, last = _operator(q, k, v, torch.cat([values, keys.unsqueeze(-1)], dim=-1))
    mixed = y[..., :-1] / (y[..., -1:] + EPS)
    return mixed.transpose(1, 2), last[..., :-1], last[..., -1]


@cache
def has_linear_attention() -> bool:
    """Whether onnxruntime has the operator, tested with a tiny graph."""
    probe = onnx.parser.parse_model('''
        <ir_version: 10, opset_import: ["": 20, "com.microsoft": 1]>
        probe (float[1,1,1] q, float[1,1,1] k, float[1,1,1] v, float[1,1,1,1] past, float[1,1,1] g)
            => (float[1,1,1] y) {
            y, last = com.microsoft.LinearAttention <q_num_heads: int = 1, kv_num_heads: int = 1,
                scale: float = 1.0, update_rule: string = "gated"> (q, k, v, past, g)
        }''')
    try:
        session = onnxruntime.InferenceSession(
            probe.SerializeToString(), providers=["CPUExecutionProvider"])
        feed = {each.name: np.ones(each.shape, np.float32) for each in session.get_inputs()}
        return bool(np.isclose(session.run(None, feed)[0].item(), np.e + 1))
    except Exception as error:  # onnxruntime's errors have no other common class
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        return False


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Operator translations for ``torch.onnx.export``."""
    from onnxscript import opset18 as op

    def stable_sort(x: Any, *, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
        """``TopK`` of all elements: of equal ones it takes the first."""
        size = op.Gather(op.Shape(x), op.Constant(value_ints=[dim]), axis=0)
        return op.TopK(x, size, axis=dim, largest=int(descending), sorted=1)

    def floor_division(left: Any, right: Any) -> Any:
        """Of any integers, as in ``-(-n // block)``: the exporter's is for positive ones only."""
        return op.Div(op.Sub(left, op.Mod(left, right)), right)

    return {operator.floordiv: floor_division, torch.ops.aten.sort.stable: stable_sort}
