"""The architecture of the published checkpoints, ``hgrn_bit``, as records.

It is that of https://github.com/ridgerchu/matmulfreellm: every projection normalises its input
again, with separate gains, after the norm of its block. Two consecutive norms need only one root:
with gains ``a`` of the block, ``n`` of the projection and e = 1e-6,

    n * norm(a * norm(x)) = n * a * x / sqrt(mean((a * x)^2) + e * mean(x^2) + e^2),

so a block takes the root once, over ``x * sqrt(a^2 + e)``, and each of its projections quantises
``x * a * n``; e^2 is below the resolution of any format. The norm of the output gate g precedes a
product with ``silu(h)`` and another norm: its RMS cancels in the codes, and remains in the root as
``e * mean(g^2)``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sterna.model.checks import check_whole
from sterna.model.profile import FixedPoint, mantissa_and_shift
from sterna.model.quantized.records import (
    Embedding,
    Energy,
    Multiply,
    Narrow,
    Project,
    Quantize,
    Record,
    Recur,
    Root,
    Scale,
    Sigmoid,
    residual,
)

__all__ = ["EPS", "WIDTHS", "Formatted", "HgrnBitShape", "Widths", "hgrn_bit"]

EPS = 1e-6
"""Added to a mean square by every projection, whatever a configuration says; the epsilon of the
preceding norms has effect only as its product with this one."""
_HEADROOM = 1.5
_TABLE = FixedPoint(16, 11)
_EXPONENT_BITS = 24
"""Bits of the powers of two that scale the channels of the embedding, so that a channel far larger
than the others does not cost them precision."""
_MOST_FRAC = 26
"""Limit that keeps e times a sum of squares below 2^52."""
_ENERGY_BITS = 10
"""Bits of the mantissa of e; a sum of squares times it stays below 2^52."""


@dataclass(frozen=True, slots=True)
class HgrnBitShape:
    """Sizes of a published model: ``dff`` is the ``intermediate_size`` of its configuration.

    ``lower_bounds`` says whether layers after the first bound their forget gates from below.
    """

    d: int
    layers: int
    dff: int
    vocab: int
    lower_bounds: bool = True

    def __post_init__(self) -> None:
        for name, high in (("d", 65536), ("layers", 1024), ("dff", 65536), ("vocab", 1 << 20)):
            check_whole(name, getattr(self, name), 1, high)


@dataclass(frozen=True, slots=True)
class Widths:
    """Number of bits of each kind of value; calibration places their binary points.

    Parameters
    ----------
    embedding, x, y
        The embedding, the residual stream, and the input of a norm.
    z, h
        Pre-activations, and recurrent states.
    silu, t, p
        ``silu(h)``, its product with the output gate, and the product of the GLU.
    gain, w, r, logit
        Stored gains; values times the gains of a projection; values times those of a root; logits.
    reciprocal_bits, root_frac, scale_frac, mantissa_bits, scale_bits
        As in :class:`~sterna.model.profile.NumericProfile`.
    sigmoid_frac, sigmoid_segments, update_frac
        Fraction bits of a sigmoid, segments of its table over ±16, and fraction bits of an
        update scaled by a lower bound.
    """

    name: str
    embedding: int
    x: int
    y: int
    z: int
    h: int
    silu: int
    t: int
    p: int
    gain: int
    w: int
    r: int
    logit: int = 16
    reciprocal_bits: int = 24
    root_frac: int = 2
    scale_frac: int = 18
    mantissa_bits: int = 16
    scale_bits: int = 18
    sigmoid_frac: int = 15
    sigmoid_segments: int = 256
    update_frac: int = 18
    table: FixedPoint = _TABLE


WIDTHS = {each.name: each for each in (
    Widths("P24", embedding=16, x=24, y=18, z=16, h=24, silu=18, t=18, p=18, gain=16, w=18, r=18),
    Widths("S16", embedding=16, x=16, y=16, z=16, h=16, silu=16, t=16, p=16, gain=16, w=18, r=18,
           sigmoid_segments=128, update_frac=15),
    Widths("C12", embedding=12, x=12, y=12, z=10, h=12, silu=12, t=12, p=12, gain=10, w=14, r=12,
           reciprocal_bits=18, root_frac=4, scale_frac=14, mantissa_bits=10, scale_bits=14,
           sigmoid_frac=10, sigmoid_segments=64, update_frac=15))}
"""Widths by name. P24 is no worse than float16, even with massive channels
(docs/published-models.md)."""


@dataclass
class Formatted:
    """Records with their formats, and the data beside them.

    ``vectors`` are the integers of each :class:`Scale`; ``scales`` the factors from the scale of a
    matrix to that of its :class:`Project`; ``constants`` the real numbers that a :class:`Root`
    adds, or an :class:`Energy` takes of a mean square, by name.
    """

    widths: Widths
    records: list[Record] = field(default_factory=list)
    vectors: dict[str, np.ndarray] = field(default_factory=dict)
    scales: dict[str, float] = field(default_factory=dict)
    constants: dict[str, float] = field(default_factory=dict)


def hgrn_bit(
    shape: HgrnBitShape, widths: Widths, reals: Mapping[str, np.ndarray],
    peaks: Mapping[str, float],
) -> Formatted:
    """The records of a published model.

    Parameters
    ----------
    shape, widths
        Sizes, and bits of each kind of value.
    reals
        The real vector ``[width]`` of each :class:`Scale`, by name.
    peaks
        The largest magnitude of each value on some text, by name. A format holds 1.5 times as
        much.

    Raises
    ------
    ValueError
        If a value is too large for its bits, or a gain has no finite exponent; the message names
        the value.
    """
    build = _Builder(shape, widths, reals, peaks)
    for layer in range(shape.layers):
        build.token_mixer(f"layer{layer}.mlgru", bounded=shape.lower_bounds and layer > 0)
        build.channel_mixer(f"layer{layer}.glu")
    build.normed("", {"head": (shape.vocab, "head.z")})
    return build.result


class _Builder:
    def __init__(
        self, shape: HgrnBitShape, widths: Widths, reals: Mapping[str, np.ndarray],
        peaks: Mapping[str, float],
    ) -> None:
        self._shape, self._widths, self._reals, self._peaks = shape, widths, reals, peaks
        self._formats: dict[str, FixedPoint] = {}
        self.result = Formatted(widths)
        self._x = "embedding.x"
        # One format for the whole stream, so that sums need no shift.
        stream = max(peaks[name] for name in (
            self._x, *(f"layer{layer}.{part}.x" for layer in range(shape.layers)
                       for part in ("mlgru", "glu"))))
        self._stream = _format(self._x, widths.x, stream)
        self._formats[self._x] = self._stream
        row = self._format("embedding.row", widths.embedding)
        self._append(Embedding("embedding.row", shape.vocab, shape.d, row))
        self._scale(self._x, "embedding.row", shape.d, self._stream, _EXPONENT_BITS)

    def token_mixer(self, at: str, bounded: bool) -> None:
        d, table, widths = self._shape.d, self._widths.table, self._widths
        self.normed(at, {"c": (d, f"{at}.c.z"), "f": (d, None), "g": (d, f"{at}.g.z")})
        # A convex combination of candidates.
        state = self._format(f"{at}.h", widths.h, f"{at}.c.silu")
        self._silu(f"{at}.c", f"{at}.c.z", d, state)
        gate, frac = f"{at}.f.sigmoid", widths.sigmoid_frac
        self._append(Sigmoid(gate, f"{at}.f.z", d, table, frac, self._step_bits, complement=True))
        self._formats[gate] = FixedPoint(frac + 2, frac)
        if bounded:
            frac = widths.update_frac
            gate = self._scale(f"{at}.f.update", gate, d, FixedPoint(frac + 2, frac), 18)
        self._append(Recur(f"{at}.h", gate, f"{at}.c.silu", d, frac, state, keeps=False))
        self._silu(f"{at}.h", f"{at}.h", d,
                   self._format(f"{at}.h.silu", widths.silu))
        self._multiply(f"{at}.o", f"{at}.g.z", f"{at}.h.silu", d, widths.t)

        g = self._formats[f"{at}.g.z"]
        root = self._format(f"{at}.out_root.r", widths.r, most_frac=min(_MOST_FRAC, g.frac + 11))
        self._scale(f"{at}.out_root.r", f"{at}.o", d, root)
        k, shift = mantissa_and_shift(EPS, _ENERGY_BITS, _ENERGY_BITS)
        energy = f"{at}.g.energy"
        self._append(Energy(energy, f"{at}.g.z", d, k, shift + 2 * (g.frac - root.frac)))
        self.result.constants[energy] = EPS
        self._append(Root(f"{at}.out_root", f"{at}.out_root.r", d, widths.root_frac, extra=energy))
        self._project(f"{at}.out", f"{at}.o", d, f"{at}.out_root", root, d, self._stream)
        self._add(at)

    def channel_mixer(self, at: str) -> None:
        d, dff, widths = self._shape.d, self._shape.dff, self._widths
        self.normed(at, {"gate": (dff, f"{at}.gate.z"), "up": (dff, f"{at}.up.z")}, shared=True)
        self._silu(f"{at}.gate", f"{at}.gate.z", dff, self._formats[f"{at}.gate.z"])
        self._multiply(f"{at}.p", f"{at}.gate.silu", f"{at}.up.z", dff, widths.p)
        p, norm = self._formats[f"{at}.p"], f"{at}.down_root"
        self._append(Root(norm, f"{at}.p", dff, widths.root_frac,
                          epsilon=math.floor(math.ldexp(EPS * dff, 2 * p.frac) + 0.5)))
        self.result.constants[norm] = EPS
        self._project(f"{at}.down", f"{at}.p", dff, norm, p, d, self._stream)
        self._add(at)

    def normed(
        self, at: str, outputs: Mapping[str, tuple[int, str | None]], shared: bool = False,
    ) -> None:
        """Projections of the normalised stream: rows of each, and the value with the peak for its
        format, None for the format of the sigmoid's table; ``shared`` if all share the gains."""
        d, widths = self._shape.d, self._widths
        begin = f"{at}." if at else ""
        norm = f"{at or 'head'}.root"
        y = self._format(f"{norm}.y", widths.y, self._x)
        self._append(Narrow(f"{norm}.y", self._x, d, self._stream.frac - y.frac, y))
        root = self._format(f"{norm}.r", widths.r)
        self._scale(f"{norm}.r", f"{norm}.y", d, root)
        self._append(Root(norm, f"{norm}.r", d, widths.root_frac))
        codes = ""
        for name, (rows, value) in outputs.items():
            output = (widths.table if value is None else
                      self._format(value, widths.logit if name == "head" else widths.z))
            codes = self._project(f"{begin}{name}", f"{norm}.y", d, norm, root, rows, output,
                                  codes if shared else "")

    # Records of a format -----------------------------------------------------------------

    @property
    def _step_bits(self) -> int:
        return self._widths.table.bits - (self._widths.sigmoid_segments.bit_length() - 1)

    def _append(self, record: Record) -> None:
        self.result.records.append(record)

    def _format(
        self, name: str, bits: int, value: str = "", most_frac: int = _MOST_FRAC,
    ) -> FixedPoint:
        """The format of ``name``, from the peak of ``value``, else of ``name``."""
        fmt = _format(name, bits, self._peaks[value or name], most_frac)
        self._formats[name] = fmt
        return fmt

    def _scale(
        self, name: str, x: str, width: int, output: FixedPoint, bits: int = 0,
    ) -> str:
        gains, frac = _gains(name, self._reals[name], bits or self._widths.gain)
        self.result.vectors[name] = gains
        self._append(Scale(name, x, width, self._formats[x].frac + frac - output.frac, output))
        self._formats[name] = output
        return name

    def _silu(self, at: str, x: str, width: int, output: FixedPoint) -> None:
        z, table, name = self._formats[x], self._widths.table, f"{at}.silu"
        self._append(Narrow(f"{at}.narrow", x, width, z.frac - table.frac, table))
        self._append(Sigmoid(f"{at}.sigmoid", f"{at}.narrow", width, table,
                             self._widths.sigmoid_frac, self._step_bits))
        self._append(Multiply(name, x, f"{at}.sigmoid", width,
                              z.frac + self._widths.sigmoid_frac - output.frac, output))
        self._formats[name] = output

    def _multiply(self, name: str, x: str, y: str, width: int, bits: int) -> None:
        shift = self._formats[x].frac + self._formats[y].frac
        output = self._format(name, bits)
        self._append(Multiply(name, x, y, width, shift - output.frac, output))

    def _project(
        self, name: str, x: str, columns: int, norm: str, root: FixedPoint, rows: int,
        output: FixedPoint, codes: str = "",
    ) -> str:
        """A projection of ``x`` times its gains, over the root ``norm`` of a value in the format
        ``root``; ``codes`` names a projection with the same gains that already quantised them.
        Returns the name of the codes."""
        widths = self._widths
        gained = f"{codes or name}.w"
        gains = self._reals[gained]
        over = self._reals.get(f"{norm}.r", np.ones(1))
        ratio = np.divide(gains, over, out=np.zeros_like(gains), where=over != 0)
        exponent = _exponent(gained, float(np.max(np.abs(ratio))))
        if not codes:
            codes = name
            w = self._format(gained, widths.w)
            self._scale(gained, x, columns, w)
            shift = widths.scale_frac + widths.root_frac + root.frac - w.frac - exponent
            if not 0 <= shift <= 40:
                raise ValueError(f"{name}.norm: its formats give a shift of {shift}, outside 0..40")
            self._append(Quantize(f"{name}.norm", gained, norm, columns, widths.reciprocal_bits,
                                  shift, widths.scale_frac))
        self._append(Project(
            name, f"{codes}.norm", rows, columns, widths.scale_frac, widths.mantissa_bits,
            widths.scale_frac + widths.mantissa_bits - widths.scale_bits, output))
        self._formats[f"{name}.z"] = output
        self.result.scales[name] = math.ldexp(math.sqrt(columns) / 127, exponent + output.frac)
        return codes

    def _add(self, at: str) -> None:
        records = self.result.records
        records[-1:] = residual(records[-1:], f"{at}.x", self._x, self._stream)
        self._x = f"{at}.x"
        self._formats[self._x] = self._stream


def _exponent(name: str, magnitude: float) -> int:
    """The least ``e`` with ``magnitude <= 2^e``."""
    if not (math.isfinite(magnitude) and magnitude > 0):
        raise ValueError(f"{name}: the largest magnitude must be positive and finite, "
                         f"got {magnitude}")
    return math.ceil(math.log2(magnitude))


def _format(name: str, bits: int, peak: float, most_frac: int = _MOST_FRAC) -> FixedPoint:
    """The format of ``bits`` with the most fraction bits that holds 1.5 times the peak."""
    frac = min(most_frac, bits - 1 - (
        _exponent(name, _HEADROOM * peak) if peak else -bits))
    if frac < 0:
        raise ValueError(
            f"{name} reaches {peak:g} on the calibration text: too much for {bits} bits")
    return FixedPoint(bits, frac)


def _gains(name: str, values: np.ndarray, bits: int) -> tuple[np.ndarray, int]:
    """Signed integers of ``bits`` with a common exponent, and their fraction bits."""
    largest = float(np.max(np.abs(values)))
    frac = bits - 1 - _exponent(name, largest)
    whole = np.floor(np.ldexp(values.astype(np.float64), frac) + 0.5)
    if whole.max() >= 1 << (bits - 1):      # a power of two, or rounded up to one
        frac -= 1
        whole = np.floor(np.ldexp(values.astype(np.float64), frac) + 0.5)
    return whole.astype(np.int32), frac
