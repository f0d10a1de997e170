"""The records in real numbers, which the integers approximate.

Values, gains, roots and sigmoids are float64; activations are quantised to 8 bits and weights are
ternary, as in training. By default no format limits or rounds anything: this is the basis for
choosing formats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from sterna.model.quantized.records import (
    Add,
    Embedding,
    Energy,
    Multiply,
    Narrow,
    Norm,
    Project,
    Quantize,
    Record,
    Recur,
    Root,
    Scale,
    Sigmoid,
)
from sterna.model.quantized.taps import Tap, ignore

__all__ = ["Matrix", "run_real"]

Matrix: TypeAlias = tuple[np.ndarray, float]
"""A ternary matrix ``[rows, columns]`` of int8, and the value of a one."""


def run_real(
    records: Sequence[Record], tokens: np.ndarray, embedding: np.ndarray,
    matrices: Callable[[str], Matrix], vectors: Mapping[str, np.ndarray],
    constants: Mapping[str, float], tap: Tap = ignore, *, keeps_logits: bool = True,
    biases: Mapping[str, np.ndarray] = MappingProxyType({}), quantises: bool = True,
    saturates: bool = False,
) -> np.ndarray | None:
    """Run whole sequences, record by record, so that only one matrix is needed at a time.

    Parameters
    ----------
    records
        In the order of computation, an :class:`Embedding` first.
    tokens
        int64 ``[batch, length]``.
    embedding
        float ``[vocab, width]``.
    matrices
        Gives the matrix of a :class:`Project` by name; called once for each, in order.
    vectors, constants
        Of :class:`Scale`; of :class:`Root` and :class:`Energy`, which add that constant or multiply
        a mean square by it.
    tap
        Called as ``tap(name, value)`` with every value ``[batch, length, ...]``, under the names
        of the integer reference.
    keeps_logits
        If False, the tap gets the logits sequence by sequence, and nothing is returned: they are
        larger than all else.
    biases
        Of :class:`Project`, if it has one.
    quantises
        Whether activations are rounded to whole numbers.
    saturates
        Whether values are limited to the range of their format, where the integers are.

    Returns
    -------
    logits
        float64 ``[batch, length, vocab]``.
    """
    values: dict[str, np.ndarray] = {}
    last_use = {name: i for i, record in enumerate(records) for name in record.reads}

    def give(name: str, value: np.ndarray) -> None:
        output = getattr(record, "output", None)
        if saturates and output is not None and getattr(record, "saturates", True):
            value = np.clip(value, *np.ldexp((output.min, output.max), -output.frac))
        values[name] = value
        tap(name, value)

    for i, record in enumerate(records):
        match record:
            case Embedding(name):
                give(name, embedding[tokens].astype(np.float64))
            case Narrow(name, x):
                give(name, values[x])
            case Scale(name, x):
                give(name, values[x] * vectors[name])
            case Norm(name, x):
                root = np.sqrt(_mean_square(values[x]))
                _quantized(give, name, values[x], np.where(root > 0, root, 1.0), quantises)
            case Energy(name, x):
                give(name, constants[name] * _mean_square(values[x]))
            case Root(name, x):
                extra = 0.0 if record.extra is None else values[record.extra]
                total = _mean_square(values[x]) + constants.get(name, 0.0) + extra
                give(f"{name}.n", np.sqrt(np.maximum(total, np.finfo(np.float64).tiny)))
            case Quantize(name, x, root):
                _quantized(give, name, values[x], values[f"{root}.n"], quantises)
            case Project(name, norm):
                codes, scale = matrices(name)
                # Whole numbers below 2^24 are exact in float32.
                kind = "f4" if quantises else "f8"
                weight_t, q = codes.T.astype(kind), values[f"{norm}.q"].astype(kind)
                factor, bias = values[f"{norm}.v"] * scale, biases.get(name, 0.0)
                if record is records[-1] and not keeps_logits:
                    for each, own in zip(q, factor, strict=True):
                        tap(f"{name}.z", (each @ weight_t * own + bias)[None])
                    return None
                give(f"{name}.z", q @ weight_t * factor + bias)
            case Sigmoid(name, x):
                sign = -1.0 if record.complement else 1.0
                give(name, 1 / (1 + np.exp(np.clip(-sign * values[x], None, 700))))
            case Recur(name, gate, candidate):
                give(name, _recur(values[gate], values[candidate], record.keeps))
            case Multiply(name, x, y) | Add(name, x, y):
                times = isinstance(record, Multiply)
                give(name, values[x] * values[y] if times else values[x] + values[y])
        for name in record.reads:
            if last_use[name] == i:
                values.pop(name, None)
    *_, logits = values.values()
    return logits


def _mean_square(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.mean(x * x, axis=-1, keepdims=True))


def _quantized(
    give: Callable[[str, np.ndarray], None], name: str, x: np.ndarray, root: np.ndarray,
    whole: bool,
) -> None:
    """Activations from -127 to 127, and the value of a one."""
    m = np.maximum(np.max(np.abs(x), axis=-1, keepdims=True), np.finfo(np.float64).tiny)
    q = x * (127 / m)
    give(f"{name}.q", np.floor(q + 0.5) if whole else q)
    give(f"{name}.v", m / (127 * root))


def _recur(gate: np.ndarray, candidate: np.ndarray, keeps: bool) -> np.ndarray:
    h, states = np.zeros_like(candidate[:, 0]), np.empty_like(candidate)
    for t in range(candidate.shape[1]):
        u = 1 - gate[:, t] if keeps else gate[:, t]
        h = h + u * (candidate[:, t] - h)
        states[:, t] = h
    return states
