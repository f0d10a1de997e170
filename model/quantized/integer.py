"""The integer reference: the one definition of Sterna's arithmetic.

Every other implementation (ONNX graphs, gateware, netlists) is compared with this file,
bit for bit. It is written against the Python array API standard, so the same source runs
on NumPy arrays and on torch tensors, CPU or CUDA. All values are int64; the only float64
are inside :func:`ternary_matmul` and :func:`isqrt`, where every value is a whole number
below 2**52 and the result therefore exact.

``rs(v, s)`` is an arithmetic right shift that rounds half up; ``//`` only ever divides a
non-negative number by a positive one. docs/numerics.md tells why each step is as it is
and proves its range.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from sterna.model.profile import FixedPoint, NumericProfile
from sterna.model.quantized import Projection, QuantizedModel
from sterna.model.quantized.taps import Tap, ignore

__all__ = [
    "IntegerMixers",
    "IntegerModel",
    "combine_scale",
    "glu_product",
    "isqrt",
    "mlgru_cell",
    "norm_quant",
    "requantize",
    "rs",
    "saturate",
    "sigmoid",
    "ternary_matmul",
]

Array = Any


def rs(value: Array, shift: int) -> Array:
    """Shift right by ``shift`` bits, rounding half up: ``(value + 2**(shift-1)) >> shift``."""
    return value if shift == 0 else (value + (1 << (shift - 1))) >> shift


def saturate(value: Array, fmt: FixedPoint) -> Array:
    """Clamp to the range of a two's complement format."""
    return array_namespace(value).clip(value, fmt.min, fmt.max)


def isqrt(value: Array) -> Array:
    """Integer square root, exact for ``0 <= value < 2**52`` (float64 is, below that)."""
    xp = array_namespace(value)
    return xp.astype(xp.floor(xp.sqrt(xp.astype(value, xp.float64))), xp.int64)


def ternary_matmul(acts: Array, weight_t: Array) -> Array:
    """Dot products of 8-bit activations with ternary rows.

    ``acts [..., n]`` int64 in [-128, 127]; ``weight_t [n, rows]`` float64 of -1, 0, 1.
    Returns int64 ``[..., rows]``. float64 sums are exact: ``128 * n < 2**53``.
    """
    xp = array_namespace(acts)
    return xp.astype(xp.astype(acts, xp.float64) @ weight_t, xp.int64)


def norm_quant(y: Array, profile: NumericProfile) -> dict[str, Array]:
    """RMS normalisation and absmax quantisation of ``y [..., n]`` in one.

    Returns ``m`` (absolute maximum), ``r`` (its reciprocal), ``q [..., n]`` (8-bit
    activations), ``s`` (their sum of squares), ``n`` (its root) and ``v`` (output scale);
    all but ``q`` have shape ``[..., 1]``. The RMS is taken over q, so an all-zero vector
    needs no epsilon.
    """
    xp = array_namespace(y)
    k, t = profile.reciprocal_bits, profile.root_frac
    m = xp.max(xp.abs(y), axis=-1, keepdims=True)
    r = (127 << k) // xp.clip(m, 1, None)
    q = rs(y * r, k)
    s = xp.sum(q * q, axis=-1, keepdims=True)
    n = xp.clip(isqrt(s << (2 * t)), 127 << t, None)
    v = (127 << (profile.scale_frac + t)) // n
    return {"m": m, "r": r, "q": q, "s": s, "n": n, "v": v}


def combine_scale(v: Array, k: int, profile: NumericProfile) -> Array:
    """``A``: the norm's output scale ``v`` times a projection's mantissa ``k``."""
    return rs(v * k, profile.combine_shift)


def requantize(
    acc: Array, scale: Array, shift: int, bias: Array | int, fmt: FixedPoint | None,
) -> Array:
    """``rs(acc * scale, shift) + bias``, saturated to ``fmt`` (not at all if None)."""
    value = rs(acc * scale, shift) + bias
    return value if fmt is None else saturate(value, fmt)


def sigmoid(z: Array, table: Array, profile: NumericProfile) -> Array:
    """Sigmoid of pre-activations ``z`` (format ``profile.z``), Ff fraction bits, by table.

    The table spans the whole range of z. The top bits of z select a segment; the others,
    if any, interpolate linearly inside it.
    """
    u = z - profile.z.min
    w = profile.sigmoid_step_bits
    if w == 0:
        return table[u]
    i = u >> w
    low = table[i]
    return low + rs((table[i + 1] - low) * (u & ((1 << w) - 1)), w)


def mlgru_cell(
    zf: Array, zc: Array, zg: Array, h: Array, table: Array, profile: NumericProfile,
) -> dict[str, Array]:
    """One step of the MLGRU (arXiv 2406.02528, eqs. 7 to 11) on pre-activations.

    Returns ``f``, ``g`` (sigmoids), ``c`` (candidate), ``h`` (new state) and ``o``. The
    new state is a rounded convex combination of h and c, so it cannot overflow.
    """
    ff = profile.sigmoid_frac
    f = sigmoid(zf, table, profile)
    g = sigmoid(zg, table, profile)
    c = saturate(rs(zc * sigmoid(zc, table, profile), profile.candidate_shift), profile.h)
    h = rs(f * h + ((1 << ff) - f) * c, ff)
    o = saturate(rs(g * h, profile.output_shift), profile.o)
    return {"f": f, "g": g, "c": c, "h": h, "o": o}


def glu_product(
    gate: Array, up: Array, table: Array, profile: NumericProfile,
) -> tuple[Array, Array]:
    """Return ``silu(gate)`` and ``p = silu(gate) * up``, saturated to ``profile.p``."""
    silu = rs(gate * sigmoid(gate, table, profile), profile.sigmoid_frac)
    return silu, saturate(rs(silu * up, profile.product_shift), profile.p)


class IntegerMixers:
    """Projections by name, each behind its norm, and the two mixers that are made of them.

    Parameters
    ----------
    profile
        Numeric formats.
    projections
        By name. The MLGRU ``at`` has those called ``{at}.f``, ``{at}.c``, ``{at}.g`` and
        ``{at}.out``, the GLU ``{at}.gate``, ``{at}.up`` and ``{at}.down``.
    sigmoid
        The table, as ``profile.sigmoid_table()`` defines it.
    like
        An array of the namespace and device to compute with.
    """

    def __init__(
        self, profile: NumericProfile, projections: Mapping[str, Projection],
        sigmoid: np.ndarray, like: Array,
    ) -> None:
        xp, where = array_namespace(like), device(like)

        def move(values: np.ndarray, dtype: Any) -> Array:
            return xp.asarray(values, dtype=dtype, device=where)

        self._profile, self._projections = profile, projections
        self._table = move(sigmoid, xp.int64)
        self._weights_t = {
            name: move(np.ascontiguousarray(p.weight.T), xp.float64)
            for name, p in projections.items()}
        self._biases = {name: move(p.bias, xp.int64) for name, p in projections.items()}

    def project(
        self, norm: str, y: Array, outputs: Mapping[str, FixedPoint | None], tap: Tap,
    ) -> list[Array]:
        """Quantise ``y [..., columns]`` once and apply every projection named in ``outputs``.

        Each result is int64 ``[..., rows]`` in the format that ``outputs`` gives, not
        saturated if that is None.
        """
        quantized = norm_quant(y, self._profile)
        for part, value in quantized.items():
            tap(f"{norm}.{part}", value)
        results = []
        for name, fmt in outputs.items():
            projection = self._projections[name]
            acc = ternary_matmul(quantized["q"], self._weights_t[name])
            scale = combine_scale(quantized["v"], projection.k, self._profile)
            z = requantize(acc, scale, projection.shift, self._biases[name], fmt)
            tap(f"{name}.acc", acc)
            tap(f"{name}.a", scale)
            tap(f"{name}.z", z)
            results.append(z)
        return results

    def mlgru(self, at: str, x: Array, h: Array, tap: Tap) -> tuple[Array, Array]:
        """The MLGRU: what it adds to ``x``, not saturated, and its new state."""
        fmt = self._profile.z
        zf, zc, zg = self.project(
            f"{at}.norm", x, {f"{at}.f": fmt, f"{at}.c": fmt, f"{at}.g": fmt}, tap)
        cell = mlgru_cell(zf, zc, zg, h, self._table, self._profile)
        tap(f"{at}.f.sigmoid", cell["f"])
        tap(f"{at}.g.sigmoid", cell["g"])
        tap(f"{at}.c.silu", cell["c"])
        tap(f"{at}.h", cell["h"])
        tap(f"{at}.o", cell["o"])
        (y,) = self.project(f"{at}.out_norm", cell["o"], {f"{at}.out": None}, tap)
        return y, cell["h"]

    def glu(self, at: str, x: Array, tap: Tap) -> Array:
        """The GLU: what it adds to ``x``, not saturated."""
        fmt = self._profile.z
        gate, up = self.project(f"{at}.norm", x, {f"{at}.gate": fmt, f"{at}.up": fmt}, tap)
        silu, p = glu_product(gate, up, self._table, self._profile)
        tap(f"{at}.gate.silu", silu)
        tap(f"{at}.p", p)
        (y,) = self.project(f"{at}.down_norm", p, {f"{at}.down": None}, tap)
        return y


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
        self.config = model.config
        self.profile = model.profile
        like = np.zeros(1) if like is None else like
        self._xp = xp = array_namespace(like)
        self._device = device(like)
        self._embedding = xp.asarray(model.embedding, dtype=xp.int64, device=self._device)
        self._mixers = IntegerMixers(model.profile, model.projections, model.sigmoid, like)

    def start(self, batch: int = 1) -> Array:
        """The state at the start of a sequence: zeros, int64 ``[layers, batch, d]``."""
        shape = (self.config.layers, batch, self.config.d)
        return self._xp.zeros(shape, dtype=self._xp.int64, device=self._device)

    def step(self, tokens: Array, state: Array, tap: Tap = ignore) -> tuple[Array, Array]:
        """Advance every sequence by one token.

        Parameters
        ----------
        tokens
            int64 ``[batch]``, each below ``config.vocab``.
        state
            int64 ``[layers, batch, d]``; it is not modified.
        tap
            Called as ``tap(name, value)`` with every intermediate tensor.

        Returns
        -------
        logits, state
            int64 ``[batch, vocab]`` in format ``profile.logit``, and the new state.

        Raises
        ------
        ValueError
            If a token is outside the vocabulary, or the state has another shape or leaves
            its format.
        """
        xp, profile = self._xp, self.profile
        shape, h = (self.config.layers, tokens.shape[0], self.config.d), profile.h
        if tuple(state.shape) != shape:
            raise ValueError(f"state must have shape {shape}, got {tuple(state.shape)}")
        if int(xp.min(state)) < h.min or int(xp.max(state)) > h.max:
            raise ValueError(
                f"state must be from {h.min} to {h.max}, "
                f"got {int(xp.min(state))} to {int(xp.max(state))}")
        if bool(xp.any(tokens < 0)) or bool(xp.any(tokens >= self.config.vocab)):
            raise ValueError(
                f"tokens must be from 0 to {self.config.vocab - 1}, got {tokens.tolist()}")
        x = self._embedding[tokens]
        tap("embedding.x", x)
        new_state = []
        for layer in range(self.config.layers):
            y, h = self._mixers.mlgru(f"layer{layer}.mlgru", x, state[layer], tap)
            new_state.append(h)
            x = self._add(f"layer{layer}.mlgru", x, y, tap)
            y = self._mixers.glu(f"layer{layer}.glu", x, tap)
            x = self._add(f"layer{layer}.glu", x, y, tap)
        (logits,) = self._mixers.project("head.norm", x, {"head": profile.logit}, tap)
        tap("logits", logits)
        return logits, xp.stack(new_state)

    def run(
        self, tokens: Array, state: Array | None = None, tap: Tap = ignore,
    ) -> tuple[Array, Array]:
        """Run ``tokens [batch, length]``; return logits ``[batch, length, vocab]``, state."""
        state = self.start(tokens.shape[0]) if state is None else state
        rows = []
        for t in range(tokens.shape[1]):
            logits, state = self.step(tokens[:, t], state, tap)
            rows.append(logits)
        return self._xp.stack(rows, axis=1), state

    def _add(self, at: str, x: Array, y: Array, tap: Tap) -> Array:
        """Add what a mixer gave to the residual stream."""
        x = saturate(x + y, self.profile.x)
        tap(f"{at}.x", x)
        return x
