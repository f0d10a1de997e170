"""The integer reference: the one definition of Sterna's arithmetic.

Every other implementation (ONNX graphs, gateware, netlists) is compared with this file,
bit for bit. It is written against the Python array API standard, so the same source runs
on NumPy arrays and on torch tensors, CPU or CUDA. All values are int64; the only floating-point
ones are inside :func:`ternary_matmul` and :func:`isqrt`, where every value is a whole number
that the type represents, so the result is exact.

``rs(v, s)`` is an arithmetic right shift that rounds half up; ``//`` only ever divides a
non-negative number by a positive one. docs/numerics.md explains each step and proves its
range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from sterna.model.profile import FixedPoint, NumericProfile
from sterna.model.quantized import Projection, QuantizedModel
from sterna.model.quantized.records import (
    Add,
    Embedding,
    Energy,
    Input,
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
from sterna.model.quantized.taps import Tap, ignore, tap_tokens

__all__ = [
    "ROWS",
    "IntegerModel",
    "IntegerRecords",
    "combine_scale",
    "isqrt",
    "norm_quant",
    "requantize",
    "rs",
    "saturate",
    "sigmoid",
    "ternary_matmul",
    "transposed",
]

Array = Any
ROWS = 32
"""Tokens times sequences computed at a time: more would only take more memory."""


def rs(value: Array, shift: int) -> Array:
    """Shift right by ``shift`` bits, rounding half up: ``(value + 2**(shift-1)) >> shift``; left by
    ``-shift`` if negative."""
    return value << -shift if shift <= 0 else (value + (1 << (shift - 1))) >> shift


def _clip(value: Array, low: int | None, high: int | None = None) -> Array:
    """Clip whole numbers with the array's method, as in NumPy and torch: array_api_compat's took
    two fifths of an evaluation."""
    return value.clip(low, high)


def saturate(value: Array, fmt: FixedPoint) -> Array:
    """Clamp to the range of a two's complement format."""
    return _clip(value, fmt.min, fmt.max)


def isqrt(value: Array) -> Array:
    """Integer square root, exact for ``0 <= value < 2**52`` (as float64 is)."""
    xp = array_namespace(value)
    return xp.astype(xp.floor(xp.sqrt(xp.astype(value, xp.float64))), xp.int64)


def ternary_matmul(acts: Array, weight_t: Array) -> Array:
    """Dot products of 8-bit activations with ternary rows.

    ``acts [..., n]`` int64 in [-128, 127]; ``weight_t`` as :func:`transposed` gives it. Returns
    int64 ``[..., rows]``; every sum is a whole number that the floating type holds exactly.
    """
    xp = array_namespace(acts)
    return xp.astype(xp.astype(acts, weight_t.dtype) @ weight_t, xp.int64)


def transposed(weight: np.ndarray, like: Array) -> Array:
    """A ternary matrix ``[rows, n]`` as floating-point ``[n, rows]`` of the namespace and device
    of ``like``: float32 while sums stay within ``128 * n <= 2**24``, float64 beyond."""
    xp = array_namespace(like)
    kind = xp.float32 if weight.shape[1] <= 1 << 17 else xp.float64
    return xp.asarray(np.ascontiguousarray(weight.T), dtype=kind, device=device(like))


def norm_quant(y: Array, norm: Norm | NumericProfile) -> dict[str, Array]:
    """RMS normalisation and absmax quantisation of ``y [..., n]`` combined.

    Returns ``m`` (absolute maximum), ``r`` (its reciprocal), ``q [..., n]`` (8-bit
    activations), ``s`` (their sum of squares), ``n`` (its root) and ``v`` (output scale);
    all but ``q`` have shape ``[..., 1]``. The RMS is taken over q, so an all-zero vector
    needs no epsilon.
    """
    xp, t = array_namespace(y), norm.root_frac
    parts = _absmax_quant(y, norm.reciprocal_bits)
    s = xp.sum(parts["q"] ** 2, axis=-1, keepdims=True)
    n = _clip(isqrt(s << (2 * t)), 127 << t)
    v = (127 << (norm.scale_frac + t)) // n
    return {**parts, "s": s, "n": n, "v": v}


def _absmax_quant(y: Array, k: int) -> dict[str, Array]:
    """Absolute maximum ``m``, its reciprocal ``r`` and 8-bit activations ``q``."""
    xp = array_namespace(y)
    m = xp.max(xp.abs(y), axis=-1, keepdims=True)
    r = (127 << k) // _clip(m, 1)
    return {"m": m, "r": r, "q": rs(y * r, k)}


def _root(x: Array, record: Root, extra: Array | int) -> dict[str, Array]:
    """Sum of squares ``s`` with its epsilon and ``extra``, and its root ``n``."""
    xp = array_namespace(x)
    s = xp.sum(x * x, axis=-1, keepdims=True) + record.epsilon + extra
    return {"s": s, "n": _clip(isqrt(s << (2 * record.root_frac)), 1)}


def _quantize(x: Array, n: Array, record: Quantize) -> dict[str, Array]:
    """``x [..., width]`` in 8 bits, and its scale over the root ``n [..., 1]``."""
    parts = _absmax_quant(x, record.reciprocal_bits)
    v = (parts["m"] << record.scale_shift) // n
    return {**parts, "v": _clip(v, None, (1 << record.scale_frac) - 1)}


def _recur(h: Array, u: Array, c: Array, frac: int) -> list[Array]:
    """The states after ``h``: each moves the previous one towards ``c`` by the fraction ``u``, so
    it cannot overflow."""
    after = []
    for part, candidate in zip(u, c, strict=True):
        h = h + rs(part * (candidate - h), frac)
        after.append(h)
    return after


def combine_scale(v: Array, k: int, project: Project | NumericProfile) -> Array:
    """``A``: the norm's output scale ``v`` times a projection's mantissa ``k``."""
    return rs(v * k, project.combine_shift)


def requantize(
    acc: Array, scale: Array, shift: int, bias: Array | int, fmt: FixedPoint | None,
) -> Array:
    """``rs(acc * scale, shift) + bias``, saturated to ``fmt`` (not at all if None)."""
    value = rs(acc * scale, shift) + bias
    return value if fmt is None else saturate(value, fmt)


def sigmoid(z: Array, table: Array, low: int, step_bits: int) -> Array:
    """Sigmoid of pre-activations by a table over their whole range, from ``low``.

    The top bits of z select a segment; the lower ``step_bits``, if any, interpolate linearly
    inside it.
    """
    u = z - low
    if step_bits == 0:
        return table[u]
    i = u >> step_bits
    first = table[i]
    return first + rs((table[i + 1] - first) * (u & ((1 << step_bits) - 1)), step_bits)


def _scaled(x: Array, offset: Array, shift: Array, fmt: FixedPoint) -> Array:
    """A frame minus its offsets, shifted right channel by channel, with a 1 appended."""
    xp = array_namespace(x)
    ones, down = xp.ones_like(shift), _clip(shift, 0)
    value = (x - offset) << _clip(-shift, 0)
    y = saturate((value + ((ones << down) >> 1)) >> down, fmt)
    return xp.concat([y, xp.full_like(y[..., :1], 1 << fmt.frac)], axis=-1)


class IntegerRecords:
    """Runs a list of records of any architecture.

    Parameters
    ----------
    records
        In the order of computation.
    projections
        The ternary matrices, by the names of the records.
    sigmoid
        The table, as defined by ``NumericProfile.sigmoid_table``.
    embedding
        int ``[vocab, width]``, if there is an :class:`Embedding`.
    like
        An array of the namespace and device to compute with; NumPy if None.
    vectors
        int ``[width]`` of each :class:`Scale`, by name, and those of each :class:`Input`.
    """

    def __init__(
        self, records: Sequence[Record], projections: Mapping[str, Projection],
        sigmoid: np.ndarray, like: Array | None = None, embedding: np.ndarray | None = None,
        vectors: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> None:
        like = np.zeros(1) if like is None else like
        xp, where = array_namespace(like), device(like)

        def move(values: np.ndarray, dtype: Any) -> Array:
            return xp.asarray(values, dtype=dtype, device=where)

        self.records, self._projections = tuple(records), projections
        self._xp = xp
        self._table = move(sigmoid, xp.int64)
        self._complement = xp.flip(self._table)
        self._embedding = None if embedding is None else move(embedding, xp.int64)
        self._weights_t = {
            name: transposed(p.weight, like) for name, p in projections.items()}
        self._biases = {name: move(p.bias, xp.int64) for name, p in projections.items()}
        self._vectors = {name: move(each, xp.int64) for name, each in vectors.items()}

    def run(
        self, values: dict[str, Array], states: Sequence[Array] = (),
    ) -> tuple[Array, list[Array]]:
        """Advance by one token or a row of tokens; return the last value and the new states.

        ``values`` are the inputs by name, int64 ``[..., width]``, ``tokens`` ``[...]`` for an
        embedding; all computed values are added. ``states`` are int64 for each :class:`Recur`, in
        order: of the shape of the values, or without their first axis, which is then time.
        """
        before, after = iter(states), []

        def give(name: str, value: Array) -> Array:
            values[name] = value
            return value

        def give_parts(name: str, parts: dict[str, Array]) -> None:
            for part, value in parts.items():
                give(f"{name}.{part}", value)

        for record in self.records:
            match record:
                case Embedding():
                    assert self._embedding is not None
                    last = give(record.name, self._embedding[values["tokens"]])
                case Input(name):
                    last = give(name, _scaled(
                        values[record.x], self._vectors[f"{name}.offset"],
                        self._vectors[f"{name}.shift"], record.output))
                case Narrow():
                    last = give(record.name, saturate(
                        rs(values[record.x], record.shift), record.output))
                case Scale():
                    last = give(record.name, saturate(
                        rs(values[record.x] * self._vectors[record.name], record.shift),
                        record.output))
                case Norm():
                    give_parts(record.name, norm_quant(values[record.x], record))
                case Energy():
                    x = values[record.x]
                    total = self._xp.sum(x * x, axis=-1, keepdims=True)
                    last = give(record.name, rs(total * record.mantissa, record.shift))
                case Root():
                    extra = 0 if record.extra is None else values[record.extra]
                    give_parts(record.name, _root(values[record.x], record, extra))
                case Quantize():
                    give_parts(record.name, _quantize(
                        values[record.x], values[f"{record.root}.n"], record))
                case Project(name):
                    own = self._projections[name]
                    acc = ternary_matmul(values[f"{record.norm}.q"], self._weights_t[name])
                    scale = combine_scale(values[f"{record.norm}.v"], own.k, record)
                    give(f"{name}.acc", acc)
                    give(f"{name}.a", scale)
                    last = give(f"{name}.z", requantize(
                        acc, scale, own.shift, self._biases[name],
                        record.output if record.saturates else None))
                case Sigmoid():
                    table = self._complement if record.complement else self._table
                    last = give(record.name, sigmoid(
                        values[record.x], table, record.z.min, record.step_bits))
                case Recur():
                    h, u = next(before), values[record.gate]
                    if record.keeps:
                        u = (1 << record.frac) - u
                    c, row = values[record.candidate], u.ndim > h.ndim
                    found = _recur(h, u, c, record.frac) if row else _recur(
                        h, u[None], c[None], record.frac)
                    last = give(record.name, self._xp.stack(found) if row else found[0])
                    after.append(found[-1])
                case Multiply():
                    last = give(record.name, saturate(
                        rs(values[record.x] * values[record.y], record.shift), record.output))
                case Add():
                    total = values[record.x] + values[record.y]
                    last = give(record.name, saturate(total, record.output)
                                if record.saturates else total)
        return last, after


class IntegerModel:
    """A quantised model that runs in integers.

    Parameters
    ----------
    model
        The quantised model.
    like
        An array of the namespace and device to compute with; NumPy if None.

    >>> from sterna.model.quantized import load_model
    >>> reference = IntegerModel(load_model("tiny"))
    >>> logits, state = reference.step(np.array([65]), reference.start(batch=1))
    >>> logits.shape, state.shape
    ((1, 256), (4, 1, 128))
    """

    def __init__(self, model: QuantizedModel, like: Array | None = None) -> None:
        self.model = model
        like = np.zeros(1) if like is None else like
        self._xp = array_namespace(like)
        self._device = device(like)
        self._records = IntegerRecords(
            model.records, model.projections, model.sigmoid, like, model.table, model.vectors)

    def start(self, batch: int = 1) -> Array:
        """The state at the start of a sequence: zeros, int64 ``[layers, batch, d]``."""
        shape = (len(self.model.states), batch, self.model.states[0].width)
        return self._xp.zeros(shape, dtype=self._xp.int64, device=self._device)

    def step(self, tokens: Array, state: Array, tap: Tap = ignore) -> tuple[Array, Array]:
        """Advance every sequence by one token, or by one frame.

        Parameters
        ----------
        tokens
            int64 ``[batch]``, each below ``model.vocab``; for a network ``[batch, channels]``, as
            from ``model.integers``.
        state
            int64 ``[layers, batch, d]``; not modified.
        tap
            Called as ``tap(name, value)`` with every intermediate tensor.

        Returns
        -------
        logits, state
            int64 ``[batch, vocab]`` in format ``model.logit``, for a network its results, and the
            new state.

        Raises
        ------
        ValueError
            If a token is outside the vocabulary, a frame has a wrong length or range, or the state
            has a wrong shape or exceeds its format.
        """
        logits, state = self._advance(tokens[None], state, tap)
        return logits[0], state

    def run(
        self, tokens: Array, state: Array | None = None, tap: Tap = ignore,
    ) -> tuple[Array, Array]:
        """Run ``tokens [batch, length]``, or frames ``[batch, length, channels]``; return logits
        ``[batch, length, vocab]``, or results, and the state.

        ``tap`` is called as by :meth:`step`, token by token.
        """
        xp, (batch, length) = self._xp, tokens.shape[:2]
        state = self.start(batch) if state is None else state
        rows, most = [], max(ROWS // max(batch, 1), 1)
        for first in range(0, length, most):
            part = xp.permute_dims(
                tokens[:, first:first + most], (1, 0, *range(2, tokens.ndim)))
            logits, state = self._advance(part, state, tap)
            rows.append(logits)
        return xp.permute_dims(xp.concat(rows), (1, 0, 2)), state

    def _advance(self, tokens: Array, state: Array, tap: Tap) -> tuple[Array, Array]:
        """Logits ``[length, batch, vocab]`` of ``tokens [length, batch]``, and the state."""
        xp, model, entry = self._xp, self.model, self.model.entry
        h = model.states[0].output
        shape = (len(model.states), tokens.shape[1], model.states[0].width)
        if tuple(state.shape) != shape:
            raise ValueError(f"state must have shape {shape}, got {tuple(state.shape)}")
        if int(xp.min(state)) < h.min or int(xp.max(state)) > h.max:
            raise ValueError(
                f"state must be from {h.min} to {h.max}, "
                f"got {int(xp.min(state))} to {int(xp.max(state))}")
        if tuple(tokens.shape[2:]) != entry.shape or not xp.isdtype(tokens.dtype, "integral"):
            raise ValueError(
                f"{entry.name} of a step must be whole numbers "
                f"[{', '.join(['batch', *map(str, entry.shape)])}], got {tokens.dtype} "
                f"{list(tokens.shape[1:])}")
        if bool(xp.any(tokens < entry.low)) or bool(xp.any(tokens > entry.high)):
            raise ValueError(
                f"{entry.name} must be from {entry.low} to {entry.high}, got "
                f"{int(xp.min(tokens))} to {int(xp.max(tokens))}")
        values = {entry.name: tokens}
        logits, new_state = self._records.run(values, list(state))
        del values[entry.name]
        tap_tokens(tap, values | {entry.result: logits})
        return logits, xp.stack(new_state)
