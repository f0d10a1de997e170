"""The computation of a token as a list of records: the architecture as data.

A record is one step of the arithmetic. It names the values that it reads and gives, and holds
its formats and shifts; the ternary matrices are stored beside the records, under the names of
their :class:`Project`. The integer reference, the range proofs and the traced ONNX graphs walk
the list in order without knowing the architecture. :mod:`sterna.model.quantized.integer` defines
the arithmetic of each record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import numpy as np

from sterna.model.checks import check_fields, check_whole
from sterna.model.config import ModelConfig
from sterna.model.profile import FixedPoint, NumericProfile

__all__ = ["Add", "Embedding", "Energy", "Input", "Multiply", "Narrow", "Norm", "Project",
           "Projection", "Quantize", "Record", "Recur", "Root", "Scale", "Sigmoid", "bitlinear",
           "glu", "glu_cell", "language_model", "mlgru", "mlgru_cell", "records_from_json",
           "records_to_json", "residual", "row_suffix"]


_VECTOR = FixedPoint(24, 0)
_EXPONENTS = 1100   # covers all float64 numbers


class _Record:
    """The common interface; most kinds read ``x`` and give ``name``, of ``width`` numbers."""

    __slots__ = ()
    name: str
    x: str
    if TYPE_CHECKING:       # a field, or derived from other fields
        @property
        def width(self) -> int: ...

    @property
    def reads(self) -> dict[str, int]:
        """The values that it reads, and the required width of each; excludes tokens."""
        return {self.x: self.width}

    @property
    def gives(self) -> dict[str, int]:
        """The values that later records may read, and the width of each."""
        return {self.name: self.width}

    @property
    def result(self) -> str:
        """The name of the first value that it gives."""
        return next(iter(self.gives))

    @property
    def vectors(self) -> dict[str, tuple[int, int, int]]:
        """Its stored vectors: length, smallest and largest number."""
        return {}


class _Normed(_Record):
    """Gives 8-bit activations and their scale."""

    __slots__ = ()

    @property
    def gives(self) -> dict[str, int]:
        return {f"{self.name}.q": self.width, f"{self.name}.v": 1}


@dataclass(frozen=True, slots=True)
class Embedding(_Record):
    """``name``: the row of a token, ``width`` values in format ``output``."""

    name: str
    vocab: int
    width: int
    output: FixedPoint

    @property
    def reads(self) -> dict[str, int]:
        return {}


@dataclass(frozen=True, slots=True)
class Input(_Record):
    """``name``: a frame of ``channels`` numbers of ``bits`` bits, each ``rs(x - offset, shift)``,
    saturated to ``output``, followed by a 1.

    ``{name}.offset`` and ``{name}.shift`` are stored vectors with a number per channel, and
    ``{name}.frac`` the fraction bits of a frame; a negative shift is a left shift. A norm removes
    the amplitude of a frame, and the 1 preserves it.
    """

    name: str
    x: str
    channels: int
    bits: int
    output: FixedPoint

    @property
    def width(self) -> int:
        """Number of results."""
        return self.channels + 1

    @property
    def reads(self) -> dict[str, int]:
        return {self.x: self.channels}

    @property
    def vectors(self) -> dict[str, tuple[int, int, int]]:
        name, channels, bits = self.name, self.channels, self.bits
        return {f"{name}.offset": (channels, -1 << bits, 1 << bits),
                f"{name}.shift": (channels, -bits, bits),
                f"{name}.frac": (channels, -_EXPONENTS, _EXPONENTS)}


@dataclass(frozen=True, slots=True)
class Narrow(_Record):
    """``name``: ``rs(x, shift)``, saturated to ``output``; a negative shift is a left shift."""

    name: str
    x: str
    width: int
    shift: int
    output: FixedPoint


@dataclass(frozen=True, slots=True)
class Scale(_Record):
    """``name``: ``rs(x * g, shift)``, saturated to ``output``; ``g`` is the stored vector ``name``,
    for example the gains of a norm."""

    name: str
    x: str
    width: int
    shift: int
    output: FixedPoint

    @property
    def vectors(self) -> dict[str, tuple[int, int, int]]:
        return {self.name: (self.width, _VECTOR.min, _VECTOR.max)}


@dataclass(frozen=True, slots=True)
class Norm(_Normed):
    """``{name}.q``: the value ``x`` divided by its RMS, in 8 bits; ``{name}.v``: their scale.

    The fields after ``width`` are those of :class:`~sterna.model.profile.NumericProfile`.
    """

    name: str
    x: str
    width: int
    reciprocal_bits: int
    root_frac: int
    scale_frac: int


@dataclass(frozen=True, slots=True)
class Energy(_Record):
    """``name``: ``rs(sum(x^2) * mantissa, shift)``, added by a :class:`Root` for the epsilon of an
    earlier norm."""

    name: str
    x: str
    width: int
    mantissa: int
    shift: int

    @property
    def gives(self) -> dict[str, int]:
        return {self.name: 1}


@dataclass(frozen=True, slots=True)
class Root(_Record):
    """``{name}.s``: ``sum(x^2) + epsilon``, plus the :class:`Energy` ``extra`` if there is one;
    ``{name}.n``: its root with ``root_frac`` fraction bits more than x, 1 or more."""

    name: str
    x: str
    width: int
    root_frac: int
    epsilon: int = 0
    extra: str | None = None

    @property
    def reads(self) -> dict[str, int]:
        return {self.x: self.width, **({self.extra: 1} if self.extra else {})}

    @property
    def gives(self) -> dict[str, int]:
        return {f"{self.name}.n": 1}


@dataclass(frozen=True, slots=True)
class Quantize(_Normed):
    """``{name}.q``: the value ``x`` in 8 bits; ``{name}.v``: their scale, over the RMS of another.

    As in :class:`Norm`, but with the root of ``root``: ``v = (m << scale_shift) // n``, at most
    ``2^scale_frac - 1``, ``m`` being the largest magnitude of x.
    """

    name: str
    x: str
    root: str
    width: int
    reciprocal_bits: int
    scale_shift: int
    scale_frac: int

    @property
    def reads(self) -> dict[str, int]:
        return {self.x: self.width, f"{self.root}.n": 1}


@dataclass(frozen=True, slots=True)
class Project(_Record):
    """``{name}.z``: a ternary matrix times the activations of ``norm``, scaled, plus a bias.

    ``output`` is the format of the result, ``saturates`` whether it is clipped to that: a following
    :class:`Add` clips the sum instead.
    """

    name: str
    norm: str
    rows: int
    columns: int
    scale_frac: int
    mantissa_bits: int
    combine_shift: int
    output: FixedPoint
    saturates: bool = True

    @property
    def width(self) -> int:
        """Number of results."""
        return self.rows

    @property
    def reads(self) -> dict[str, int]:
        return {f"{self.norm}.q": self.columns, f"{self.norm}.v": 1}

    @property
    def gives(self) -> dict[str, int]:
        return {f"{self.name}.z": self.rows}


@dataclass(frozen=True, slots=True)
class Sigmoid(_Record):
    """``name``: the sigmoid of the value ``x``, or of ``-x``, by table; ``frac`` fraction bits.

    ``x`` is in format ``z``; the table covers its whole range. ``complement`` selects the sigmoid
    of ``-x``, which is ``1 - sigmoid(x)`` without loss of digits; it needs an interpolated table
    and reads it from the other end.
    """

    name: str
    x: str
    width: int
    z: FixedPoint
    frac: int
    step_bits: int
    complement: bool = False


@dataclass(frozen=True, slots=True)
class Recur(_Record):
    """``name``: a state ``h = h + rs(u * (c - h), frac)``, kept from token to token.

    ``candidate`` is the value c in the format of the state, ``output``, and u is from 0 to 1 with
    ``frac`` fraction bits. The value ``gate`` is u, or, if ``keeps``, the ``1 - u`` of a forget
    gate: then ``h = rs(f * h + (1 - f) * c, frac)``.
    """

    name: str
    gate: str
    candidate: str
    width: int
    frac: int
    output: FixedPoint
    keeps: bool = True

    @property
    def reads(self) -> dict[str, int]:
        return dict.fromkeys((self.gate, self.candidate), self.width)


@dataclass(frozen=True, slots=True)
class Multiply(_Record):
    """``name``: ``rs(x * y, shift)`` of two values, saturated to ``output``."""

    name: str
    x: str
    y: str
    width: int
    shift: int
    output: FixedPoint

    @property
    def reads(self) -> dict[str, int]:
        return dict.fromkeys((self.x, self.y), self.width)


@dataclass(frozen=True, slots=True)
class Add(_Record):
    """``name``: the sum of the values ``x`` and ``y``, of ``width`` values in ``output``."""

    name: str
    x: str
    y: str
    width: int
    output: FixedPoint
    saturates: bool = True

    @property
    def reads(self) -> dict[str, int]:
        return dict.fromkeys((self.x, self.y), self.width)


Record: TypeAlias = (Embedding | Narrow | Scale | Norm | Energy | Root | Quantize | Project |
                     Sigmoid | Recur | Multiply | Add | Input)
"""One step of the arithmetic."""


@dataclass(frozen=True, slots=True)
class Projection:
    """One ternary matrix with its scale and bias.

    Parameters
    ----------
    weight
        int8 ``[rows, columns]`` of -1, 0 and 1.
    bias
        int16 or int32 ``[rows]`` in the format of the projection's output.
    k, shift
        Mantissa and right shift of the weight scale: ``z = rs(acc * A, shift) + bias``
        with ``A = rs(V * k, combine_shift)``.
    """

    weight: np.ndarray
    bias: np.ndarray
    k: int
    shift: int


def row_suffix(records: Sequence[Record]) -> tuple[int, str]:
    """Start of the longest suffix of records that do not depend on other tokens (after the last
    recurrence) and read only one value of earlier records; and that value."""
    found: tuple[int, str] = (len(records), "")
    inside: set[str] = set()
    outside: set[str] = set()
    for index in range(len(records) - 1, -1, -1):
        record = records[index]
        if isinstance(record, Recur | Embedding):
            break
        inside |= record.gives.keys()
        outside = (outside | record.reads.keys()) - inside
        if len(outside) == 1:
            found = index, next(iter(outside))
    return found


# In files -----------------------------------------------------------------------------

_KINDS: dict[str, Any] = {kind.__name__.lower(): kind for kind in get_args(Record)}
_DEFAULTS = {kind: {each.name: each.default for each in fields(kind) if each.default is not MISSING}
             for kind in get_args(Record)}
_RANGES = {"shift": (-40, 80), "epsilon": (0, 1 << 52), "bits": (0, 48), "frac": (0, 32)}
"""Ranges of numbers by the end of their names; all others are from 1 to 2^24."""


def records_to_json(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The records as objects with their ``kind`` and their fields, except those at a default."""
    return [{"kind": type(record).__name__.lower(),
             **{name: value for name, value in asdict(record).items()
                if (name, value) not in _DEFAULTS[type(record)].items()}} for record in records]


def records_from_json(content: Any) -> tuple[Record, ...]:
    """Undo :func:`records_to_json`.

    Raises ValueError if a record is of an unknown kind, has a missing or unknown field or one of
    wrong type or range, reads a value of another width or that no earlier record gives (except the
    frames of an input at the beginning), or gives one already given; the message names the record.
    """
    if not isinstance(content, list) or not content:
        raise ValueError(f"records must be a list, got {content!r:.40}")
    records = tuple(_record(i, each) for i, each in enumerate(content))
    first = records[0]
    widths = first.reads if isinstance(first, Input) else {}
    for record in records:
        for name, width in record.reads.items():
            if widths.get(name) != width:
                raise ValueError(f"the record {record.name} reads {name} with {width} values, of "
                                 f"which there are {widths.get(name, 'none')}")
        for name, width in record.gives.items():
            if name in widths:
                raise ValueError(f"the record {record.name} gives {name} a second time")
            widths[name] = width
    return records


def _record(index: int, content: Any) -> Record:
    kind = content.get("kind") if isinstance(content, dict) else None
    if kind not in _KINDS:
        raise ValueError(f"record {index} must be one of {', '.join(_KINDS)}, got {kind!r}")
    make = _KINDS[kind]
    values = _DEFAULTS[make] | {name: value for name, value in content.items() if name != "kind"}
    at = f"record {index} ({kind})"
    check_fields(at, values, (each.name for each in fields(make)))
    for each in fields(make):
        value, where = values[each.name], f"{at}: {each.name}"
        match each.type:
            case "FixedPoint":
                check_fields(where, value, ("bits", "frac"))
                values[each.name] = FixedPoint(**value)
            case "int":
                check_whole(where, value, *_RANGES.get(each.name.split("_")[-1], (1, 1 << 24)))
            case type_name:
                allowed = {"str": str, "bool": bool, "str | None": str | None}[str(type_name)]
                if not isinstance(value, allowed):
                    raise ValueError(f"{where} must be of type {type_name}, got {value!r}")
    made: Record = make(**values)
    return made


# Architectures ------------------------------------------------------------------------

Shapes: TypeAlias = Mapping[str, tuple[int, int]]
"""Rows and columns of projections, by name."""


def bitlinear(
    profile: NumericProfile, norm: str, x: str, shapes: Shapes, output: FixedPoint,
) -> list[Record]:
    """A norm of the value ``x`` followed by parallel projections, all of one format."""
    k, t, p = profile.reciprocal_bits, profile.root_frac, profile.scale_frac
    (columns,) = {columns for _, columns in shapes.values()}
    return [Norm(norm, x, columns, k, t, p), *(
        Project(name, norm, *shape, p, profile.mantissa_bits, profile.combine_shift, output)
        for name, shape in shapes.items())]


def mlgru_cell(profile: NumericProfile, at: str, width: int) -> list[Record]:
    """The state ``{at}.h`` and the output ``{at}.o`` of an MLGRU (arXiv 2406.02528, eqs. 7-10)
    from the values ``{at}.f.z``, ``.c.z`` and ``.g.z``."""
    return [
        _sigmoid(profile, f"{at}.f", width),
        *_silu(profile, f"{at}.c", width, profile.candidate_shift, profile.h),
        Recur(f"{at}.h", f"{at}.f.sigmoid", f"{at}.c.silu", width, profile.sigmoid_frac, profile.h),
        _sigmoid(profile, f"{at}.g", width),
        Multiply(f"{at}.o", f"{at}.g.sigmoid", f"{at}.h", width, profile.output_shift, profile.o)]


def glu_cell(profile: NumericProfile, at: str, width: int) -> list[Record]:
    """The product ``{at}.p`` of a gated linear unit, from ``{at}.gate.z`` and ``{at}.up.z``."""
    return [
        *_silu(profile, f"{at}.gate", width, profile.sigmoid_frac, profile.z),
        Multiply(f"{at}.p", f"{at}.gate.silu", f"{at}.up.z", width, profile.product_shift,
                 profile.p)]


def _sigmoid(profile: NumericProfile, at: str, width: int) -> Sigmoid:
    return Sigmoid(f"{at}.sigmoid", f"{at}.z", width, profile.z, profile.sigmoid_frac,
                   profile.sigmoid_step_bits)


def _silu(
    profile: NumericProfile, at: str, width: int, shift: int, output: FixedPoint,
) -> list[Record]:
    return [_sigmoid(profile, at, width),
            Multiply(f"{at}.silu", f"{at}.z", f"{at}.sigmoid", width, shift, output)]


def mlgru(
    profile: NumericProfile, at: str, x: str, shapes: Shapes, output: FixedPoint,
) -> list[Record]:
    """The MLGRU ``at``, with the projections ``{at}.f``, ``.c``, ``.g`` and ``.out``."""
    last = f"{at}.out"
    return [
        *bitlinear(profile, f"{at}.norm", x, _without(last, shapes), profile.z),
        *mlgru_cell(profile, at, shapes[last][1]),
        *bitlinear(profile, f"{at}.out_norm", f"{at}.o", {last: shapes[last]}, output)]


def glu(
    profile: NumericProfile, at: str, x: str, shapes: Shapes, output: FixedPoint,
) -> list[Record]:
    """The GLU ``at``, with the projections ``{at}.gate``, ``.up`` and ``.down``."""
    last = f"{at}.down"
    return [
        *bitlinear(profile, f"{at}.norm", x, _without(last, shapes), profile.z),
        *glu_cell(profile, at, shapes[last][1]),
        *bitlinear(profile, f"{at}.down_norm", f"{at}.p", {last: shapes[last]}, output)]


def residual(records: Sequence[Record], name: str, x: str, output: FixedPoint) -> list[Record]:
    """The records followed by ``name``: the sum of their result and the value ``x``.

    Only the sum is saturated, not the result.
    """
    *others, last = records
    if not isinstance(last, Project | Add):
        raise ValueError(f"nothing can be added to the result of a {type(last).__name__}")
    last = replace(last, saturates=False)
    return [*others, last, Add(name, x, last.result, last.width, output)]


def language_model(config: ModelConfig, profile: NumericProfile) -> tuple[Record, ...]:
    """The MatMul-free language model; its logits are the last value, ``head.z``."""
    shapes = config.projections()
    x = "embedding.x"
    records: list[Record] = [Embedding(x, config.vocab, config.d, profile.x)]
    for layer in range(config.layers):
        for mixer, at in ((mlgru, f"layer{layer}.mlgru"), (glu, f"layer{layer}.glu")):
            own = {name: shape for name, shape in shapes.items() if name.startswith(f"{at}.")}
            records += residual(
                mixer(profile, at, x, own, profile.x), f"{at}.x", x, profile.x)
            x = f"{at}.x"
    return (*records, *bitlinear(
        profile, "head.norm", x, {"head": shapes["head"]}, profile.logit))


def _without(name: str, shapes: Shapes) -> Shapes:
    return {each: shape for each, shape in shapes.items() if each != name}
