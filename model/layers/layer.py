"""Layers with a norm: BitLinear, MLGRU and GLU, from their ternary matrices; layers of layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

import numpy as np
from array_api_compat import array_namespace, device

from sterna.model.layers.matrix import MatrixLayer, Ternary, TernaryMatrix, ternary_matrix
from sterna.model.profile import PROFILES, S16, FixedPoint, NumericProfile, profile_of
from sterna.model.quantized import Projection, QuantizedModel
from sterna.model.quantized.entry import FRAMES, frame_integers
from sterna.model.quantized.fixed import check_bias, quantize_projection
from sterna.model.quantized.integer import ROWS, IntegerRecords
from sterna.model.quantized.records import (
    Input,
    Record,
    Recur,
    bitlinear,
    glu,
    mlgru,
    residual,
)
from sterna.model.quantized.taps import Tap, ignore, tap_tokens

__all__ = ["BitLinearLayer", "GluLayer", "InputLayer", "Layer", "LayerOrWeights", "MlgruLayer",
           "NetworkLayer", "ResidualLayer", "SequentialLayer", "State", "input_bits", "layer_of",
           "matrix_layer_of"]

FRAME_BITS = 16
"""Signed bits of the numbers of a frame, as from most sensors."""

Array = Any
State: TypeAlias = tuple[Array, ...]
"""States of a layer's recurrences, in the order of computation: int64 ``[batch, d]`` each."""


def input_bits(profile: NumericProfile) -> int:
    """Signed bits of the input of a norm of this profile: its widest normalised vector."""
    return max(profile.x.bits, profile.o.bits, profile.p.bits)


class Layer(ABC):
    """A layer of integers that maps a vector to a vector, token by token.

    ``columns`` is the length of its input and ``rows`` of its output, ``output`` the format of
    the latter; ``profile`` has the other formats. If a norm comes first, the input may be in any
    fixed-point format of ``bits`` bits: a norm is independent of scale.
    """

    profile: NumericProfile
    output: FixedPoint

    @property
    def rows(self) -> int:
        """Length of the output."""
        return self._own[-1].width

    @property
    def columns(self) -> int:
        """Length of the input."""
        first = self._own[0]
        return first.channels if isinstance(first, Input) else first.width

    @property
    def states(self) -> tuple[int, ...]:
        """Channels of each recurrence."""
        return tuple(each.width for each in self._own if isinstance(each, Recur))

    @property
    def input(self) -> FixedPoint | None:
        """The required format of the input; None if its scale does not matter."""
        return None

    @property
    def fraction_bits(self) -> np.ndarray | None:
        """Fraction bits per channel, int ``[columns]``, if it begins with an input; else None."""
        return self.vectors().get(f"{self._own[0].name}.frac")

    @property
    def bits(self) -> int:
        """Signed bits of the input."""
        first = self._own[0]
        return first.bits if isinstance(first, Input) else input_bits(self.profile)

    @abstractmethod
    def records(self, at: str = "", x: str = "x") -> list[Record]:
        """The records of the layer for the input value ``x``; ``at`` begins their names."""

    @abstractmethod
    def matrices(self, at: str = "") -> dict[str, Projection]:
        """The ternary matrices, by the names of the records."""

    def vectors(self, at: str = "") -> dict[str, np.ndarray]:
        """The stored vectors of the records, by name."""
        return {}

    def start(self, batch: int = 1, like: Array | None = None) -> State:
        """The state at the start of a sequence: zeros, int64 ``[batch, d]`` each."""
        xp = array_namespace(np.zeros(1) if like is None else like)
        return tuple(xp.zeros((batch, channels), dtype=xp.int64) for channels in self.states)

    def step(self, x: Array, state: State = (), tap: Tap = ignore) -> tuple[Array, State]:
        """Advance by one token on the integer reference.

        Parameters
        ----------
        x
            int64 ``[batch, columns]`` of ``bits`` signed bits.
        state
            From :meth:`start` or the previous step; not modified.
        tap
            Called as ``tap(name, value)`` with every intermediate tensor.

        Returns
        -------
        y, state
            int64 ``[batch, rows]`` in format ``output``, and the new state.

        Raises
        ------
        ValueError
            If ``x`` is not of integers, or it or a state has a wrong shape or exceeds its range.
        """
        y, state = self._advance(x[None], state, tap)
        return y[0], state

    def run(self, x: Array, state: State | None = None, tap: Tap = ignore) -> tuple[Array, State]:
        """Run ``x [batch, time, columns]``; return ``[batch, time, rows]`` and the last state."""
        xp = array_namespace(x)
        if x.ndim != 3:
            raise ValueError(f"x must be [batch, time, {self.columns}], got {list(x.shape)}")
        state = self.start(x.shape[0], x) if state is None else state
        rows, most = [], max(ROWS // max(x.shape[0], 1), 1)
        for first in range(0, x.shape[1], most):
            part = xp.permute_dims(x[:, first:first + most], (1, 0, 2))
            y, state = self._advance(part, state, tap)
            rows.append(y)
        return xp.permute_dims(xp.concat(rows), (1, 0, 2)), state

    def to_model(self, provenance: Mapping[str, Any] = MappingProxyType({})) -> QuantizedModel:
        """The layer as a model that can be saved: a network over frames, as it begins with an
        :class:`InputLayer`.

        ``provenance`` is its origin (JSON). Raises ValueError if the layer does not begin with an
        input, has formats of its own, or does not have states of one length.
        """
        records = self.records(x=FRAMES)
        if not isinstance(records[0], Input):
            raise ValueError(
                f"a model begins with an Input, which says how frames become integers; this layer "
                f"begins with the {type(records[0]).__name__} {records[0].name}")
        if PROFILES.get(self.profile.name) != self.profile:
            raise ValueError(
                f"a model of a network has the formats of {' or '.join(PROFILES)}, and profile "
                f"{self.profile.name!r} of this layer has others")
        return QuantizedModel(
            tuple(records), self.profile.name, self.matrices(), None,
            np.array(self.profile.sigmoid_table(), dtype=np.int32), dict(provenance),
            vectors=self.vectors())

    def _advance(self, x: Array, state: State, tap: Tap) -> tuple[Array, State]:
        """Advance by a row of tokens, ``x [time, batch, columns]``."""
        xp, h = array_namespace(x), self.profile.h
        if not xp.isdtype(x.dtype, "integral"):
            raise ValueError(f"x must be integers, got {x.dtype}")
        x = xp.astype(x, xp.int64)
        limit = 1 << (self.bits - 1)
        if x.ndim != 3 or x.shape[2] != self.columns or not x.shape[1]:
            raise ValueError(f"x must be [batch, {self.columns}], got {list(x.shape[1:])}")
        if int(xp.min(x)) < -limit or int(xp.max(x)) >= limit:
            raise ValueError(
                f"x must be from {-limit} to {limit - 1}, "
                f"got {int(xp.min(x))} to {int(xp.max(x))}")
        wanted = [(x.shape[1], channels) for channels in self.states]
        if [tuple(each.shape) for each in state] != wanted:
            raise ValueError(
                f"state must have the shapes {wanted}, got {[tuple(s.shape) for s in state]}")
        for each in state:
            if int(xp.min(each)) < h.min or int(xp.max(each)) > h.max:
                raise ValueError(
                    f"a state must be from {h.min} to {h.max}, "
                    f"got {int(xp.min(each))} to {int(xp.max(each))}")
        values = {"x": x}
        y, new = self._integers(x).run(values, state)
        del values["x"]
        tap_tokens(tap, values | {"y": y})
        return y, tuple(new)

    def _integers(self, like: Array) -> IntegerRecords:
        """The integer reference of the layer.

        Made once per namespace and device of arrays: moving the weights there takes several times
        as long as multiplying with them.
        """
        key = (array_namespace(like).__name__, str(device(like)))
        if key not in self._made:
            table = np.array(self.profile.sigmoid_table(), dtype=np.int32)
            self._made[key] = IntegerRecords(
                self._own, self.matrices(), table, like, vectors=self.vectors())
        return self._made[key]

    @cached_property
    def _own(self) -> list[Record]:
        return self.records()

    @cached_property
    def _made(self) -> dict[tuple[str, str], IntegerRecords]:
        return {}


@dataclass(frozen=True, eq=False)
class _Mixer(Layer):
    """A layer of projections: the common part of BitLinear, MLGRU and GLU.

    ``projections`` by name, in the order of computation: the first takes the input, the last
    gives the output. ``prefix`` begins their names in the records.
    """

    profile: NumericProfile
    projections: Mapping[str, Projection]
    output: FixedPoint
    prefix: ClassVar[str] = ""

    def matrices(self, at: str = "") -> dict[str, Projection]:
        return {f"{at}{self.prefix}{name}": each for name, each in self.projections.items()}

    def _shapes(self, at: str) -> dict[str, tuple[int, int]]:
        return {name: each.weight.shape for name, each in self.matrices(at).items()}


@dataclass(frozen=True, eq=False)
class BitLinearLayer(_Mixer):
    """Norm and 8-bit quantisation, a ternary matrix, scale and bias. Make one with :meth:`of`.

    >>> layer = BitLinearLayer.of(np.array([[1, 0, -1], [1, 1, 1]]))
    >>> layer.step(np.array([[2000, 10, -1000]]))[0].tolist()
    [[9509, 3253]]
    """

    @classmethod
    def of(
        cls, weights: Ternary, *, profile: NumericProfile | str = S16,
        output: FixedPoint | None = None,
    ) -> BitLinearLayer:
        """Make the layer of a ternary matrix.

        Parameters
        ----------
        weights
            The matrix with its scale and bias, or only its codes ``[rows, columns]``.
        profile
            Numeric formats, or their name.
        output
            Format of the result, 2 to 23 bits; None for that of pre-activations, ``profile.z``.

        Raises
        ------
        ValueError
            If the weights are not ternary, the scale cannot be represented or a bias does not fit
            one bit more than the output.
        """
        matrix = ternary_matrix("weights", weights)
        profile = profile_of(profile)
        fmt = profile.z if output is None else output
        return cls(profile, {"linear": _projection("weights", matrix, profile, fmt)}, fmt)

    def records(self, at: str = "", x: str = "x") -> list[Record]:
        return bitlinear(self.profile, f"{at}norm", x, self._shapes(at), self.output)


@dataclass(frozen=True, eq=False)
class MlgruLayer(_Mixer):
    """The token mixer: ``y = out(norm(g * h))`` with ``h = f * h + (1 - f) * c``.

    ``f``, ``c`` and ``g`` are projections of ``norm(x)``, followed by a sigmoid, a SiLU and a
    sigmoid (arXiv 2406.02528, eqs. 7 to 11). Make one with :meth:`of`.
    """

    prefix: ClassVar[str] = "mlgru."

    @classmethod
    def of(
        cls, f: Ternary, c: Ternary, g: Ternary, out: Ternary, *,
        profile: NumericProfile | str = S16, output: FixedPoint | None = None,
    ) -> MlgruLayer:
        """Make the layer from its four ternary matrices.

        Parameters
        ----------
        f, c, g
            Forget gate, candidate and output gate, ``[d, columns]`` each.
        out
            Output projection, ``[rows, d]``.
        profile
            Numeric formats, or their name.
        output
            Format of the result, 2 to 23 bits; None for that of the residual stream,
            ``profile.x``.

        Raises
        ------
        ValueError
            If a matrix is not ternary, shapes do not match, a scale cannot be represented or a
            bias does not fit one bit more than its output.
        """
        profile = profile_of(profile)
        fmt = profile.x if output is None else output
        return cls(profile, _gated({"f": f, "c": c, "g": g}, ("out", out), profile, fmt), fmt)

    def records(self, at: str = "", x: str = "x") -> list[Record]:
        return mlgru(self.profile, f"{at}mlgru", x, self._shapes(at), self.output)


@dataclass(frozen=True, eq=False)
class GluLayer(_Mixer):
    """The channel mixer: ``y = down(norm(silu(gate) * up))``. Make one with :meth:`of`."""

    prefix: ClassVar[str] = "glu."

    @classmethod
    def of(
        cls, gate: Ternary, up: Ternary, down: Ternary, *,
        profile: NumericProfile | str = S16, output: FixedPoint | None = None,
    ) -> GluLayer:
        """Make the layer from its three ternary matrices.

        Parameters
        ----------
        gate, up
            Projections of ``norm(x)``, ``[dff, columns]`` each.
        down
            Output projection, ``[rows, dff]``.
        profile
            Numeric formats, or their name.
        output
            Format of the result, 2 to 23 bits; None for that of the residual stream,
            ``profile.x``.

        Raises
        ------
        ValueError
            As :meth:`MlgruLayer.of` does.
        """
        profile = profile_of(profile)
        fmt = profile.x if output is None else output
        return cls(profile, _gated({"gate": gate, "up": up}, ("down", down), profile, fmt), fmt)

    def records(self, at: str = "", x: str = "x") -> list[Record]:
        return glu(self.profile, f"{at}glu", x, self._shapes(at), self.output)


@dataclass(frozen=True, eq=False)
class InputLayer(Layer):
    """The first layer of a network over a sensor: each channel of a frame minus an offset, times a
    power of two, followed by a 1. Make one with :meth:`of`.

    A norm removes the amplitude of a frame: after it a loud one looks like a quiet one. The 1,
    divided by the same root, preserves it. Powers of two need no multiplier.

    >>> layer = InputLayer.of([20.0, 0.0], [-3, 2], [64.0, 0.5])
    >>> x = layer.integers([[28.0, 0.25]])
    >>> (layer.step(x)[0] / 2 ** layer.output.frac).tolist()
    [[1.0, 1.0, 1.0]]
    """

    profile: NumericProfile
    frac: np.ndarray  #: int ``[channels]``, of a frame
    offset: np.ndarray  #: int ``[channels]``, with as many fraction bits
    shift: np.ndarray  #: int ``[channels]``

    @classmethod
    def of(
        cls, offset: Any, exponent: Any, largest: Any, *, profile: NumericProfile | str = S16,
    ) -> InputLayer:
        """Make the layer from constants per channel, ``[channels]`` each.

        Parameters
        ----------
        offset
            The value to subtract, such as the mean of the channel.
        exponent
            Whole numbers: the difference is multiplied by 2 to their power, after which the
            channels should be of similar size, near 1.
        largest
            Largest magnitude of the channel; values beyond it are clipped. Each channel uses the
            finest resolution that ``FRAME_BITS``, 16, allow.
        profile
            Numeric formats, or their name.

        Raises
        ------
        ValueError
            If the lengths differ, a number is not finite, an exponent is not whole, or an offset
            exceeds the largest magnitude; the message names the channel.
        """
        profile = profile_of(profile)
        bits = FRAME_BITS
        offsets, exponents, most = (np.asarray(each, dtype=np.float64) for each in (
            offset, exponent, largest))
        if not offsets.ndim == exponents.ndim == most.ndim == 1 or not (
                0 < offsets.size == exponents.size == most.size):
            raise ValueError(
                f"offset, exponent and largest must have one number for each channel, got the "
                f"shapes {offsets.shape}, {exponents.shape} and {most.shape}")
        for channel, (each, power, limit) in enumerate(
                zip(offsets, exponents, most, strict=True)):
            if not (np.isfinite((each, power, limit)).all() and power == int(power)
                    and abs(each) <= limit and limit > 0):
                raise ValueError(
                    f"channel {channel}: an offset of {each:g}, an exponent of {power:g} and a "
                    f"largest magnitude of {limit:g}: they must be finite, the exponent whole, and "
                    f"the largest magnitude above 0 and no less than that of the offset")
        # frexp: limit < 2^e, so the integers stay below 2^(bits - 1).
        frac = bits - 1 - np.frexp(most)[1].astype(np.int64)
        shift = frac - exponents.astype(np.int64) - profile.x.frac
        beyond = np.flatnonzero(np.abs(shift) > bits)
        if beyond.size:
            raise ValueError(
                f"channel {beyond[0]}: numbers up to {most[beyond[0]]:g} times "
                f"2^{exponents[beyond[0]]:g} are far outside of {profile.x}")
        return cls(profile, frac, np.rint(np.ldexp(offsets, frac)).astype(np.int64), shift)

    # mypy allows no property in place of a field; nothing assigns it.
    @property
    def output(self) -> FixedPoint:  # type: ignore[override]
        """The format of the residual stream."""
        return self.profile.x

    def integers(self, frames: Any) -> np.ndarray:
        """Real frames ``[..., channels]`` as the integers that the layer takes, int64.

        Rounded half up, and clipped. Raises ValueError if a frame has the wrong length or a number
        is not finite.
        """
        return frame_integers(frames, self.frac, self.bits)[0]

    def records(self, at: str = "", x: str = "x") -> list[Record]:
        return [Input(f"{at}input", x, len(self.frac), FRAME_BITS, self.output)]

    def matrices(self, at: str = "") -> dict[str, Projection]:
        return {}

    def vectors(self, at: str = "") -> dict[str, np.ndarray]:
        return {f"{at}input.{part}": getattr(self, part) for part in ("offset", "shift", "frac")}


def _projection(
    name: str, matrix: TernaryMatrix, profile: NumericProfile, output: FixedPoint,
) -> Projection:
    check_bias(name, matrix.bias, output)
    return quantize_projection(name, matrix.weight, matrix.scale, matrix.bias, profile, output)


def _gated(
    gates: Mapping[str, Ternary], last: tuple[str, Ternary], profile: NumericProfile,
    output: FixedPoint,
) -> dict[str, Projection]:
    """Parallel projections of one shape, and one that takes the result computed from them."""
    matrices = {name: ternary_matrix(name, value) for name, value in gates.items()}
    first, *others = matrices
    shape = matrices[first].weight.shape
    for name in others:
        if matrices[name].weight.shape != shape:
            raise ValueError(
                f"{name} must have the shape {shape} of {first}, "
                f"got {matrices[name].weight.shape}")
    after = ternary_matrix(*last)
    if after.columns != shape[0]:
        raise ValueError(
            f"{last[0]} must have {shape[0]} columns, the rows of {first}, got {after.columns}")
    return {
        **{name: _projection(name, each, profile, profile.z) for name, each in matrices.items()},
        last[0]: _projection(last[0], after, profile, output)}


# Layers of layers ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ResidualLayer(Layer):
    """``y = saturate(x + layer(x))`` in the format of the residual stream, ``profile.x``.

    Raises
    ------
    ValueError
        If the layer gives another number of values than it takes, or other fraction bits than the
        residual stream has.
    """

    layer: Layer

    def __post_init__(self) -> None:
        layer, x = self.layer, self.layer.profile.x
        if layer.rows != layer.columns:
            raise ValueError(
                f"a layer with a residual must give as many values as it takes, got "
                f"{layer.columns} in and {layer.rows} out")
        if layer.output.frac != x.frac:
            raise ValueError(
                f"a layer with a residual must have {x.frac} fraction bits in its output, those "
                f"of the residual stream, got {layer.output.frac}")

    # mypy allows no property in place of a field; nothing assigns either.
    @property
    def profile(self) -> NumericProfile:  # type: ignore[override]
        """The profile of the layer."""
        return self.layer.profile

    @property
    def output(self) -> FixedPoint:  # type: ignore[override]
        """The format of the residual stream."""
        return self.layer.profile.x

    @property
    def input(self) -> FixedPoint:
        return self.layer.profile.x

    def records(self, at: str = "", x: str = "x") -> list[Record]:
        return residual(self.layer.records(self._inside(at), x), f"{at}sum", x, self.output)

    def matrices(self, at: str = "") -> dict[str, Projection]:
        return self.layer.matrices(self._inside(at))

    def vectors(self, at: str = "") -> dict[str, np.ndarray]:
        return self.layer.vectors(self._inside(at))

    def _inside(self, at: str) -> str:
        """Prefix of the names of the layer's records; another sum needs a different one."""
        return f"{at}residual." if isinstance(self.layer, ResidualLayer) else at


@dataclass(frozen=True, eq=False)
class SequentialLayer(Layer):
    """Layers in sequence.

    Raises
    ------
    ValueError
        If there is none, they have different profiles, or the values that one gives differ in
        number from those the next one takes, are wider than a norm takes, or have another format
        than the residual stream if the next layer adds to it.
    """

    layers: Sequence[Layer]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        if not self.layers:
            raise ValueError("a sequence of layers needs at least one")
        for index, (one, following) in enumerate(
                zip(self.layers, self.layers[1:], strict=False)):
            if following.profile != one.profile:
                raise ValueError(
                    f"layers must have one profile, got {one.profile.name} in layer {index} and "
                    f"{following.profile.name} in layer {index + 1}")
            if following.columns != one.rows:
                raise ValueError(
                    f"layer {index} gives {one.rows} values, and layer {index + 1} takes "
                    f"{following.columns}")
            if isinstance(following.records()[0], Input):
                raise ValueError(
                    f"layer {index + 1} begins with an input, which is the first of all layers")
            if one.output.bits > input_bits(one.profile):
                raise ValueError(
                    f"layer {index} gives {one.output.bits} bits, and a norm takes up to "
                    f"{input_bits(one.profile)}")
            if following.input not in (None, one.output):
                raise ValueError(
                    f"layer {index + 1} adds to its input, which must have the format "
                    f"{following.input}; layer {index} gives {one.output}")

    # mypy allows no property in place of a field; nothing assigns either.
    @property
    def profile(self) -> NumericProfile:  # type: ignore[override]
        """The profile of all layers."""
        return self.layers[0].profile

    @property
    def output(self) -> FixedPoint:  # type: ignore[override]
        """The format of the last layer."""
        return self.layers[-1].output

    @property
    def input(self) -> FixedPoint | None:
        return self.layers[0].input

    def records(self, at: str = "", x: str = "x") -> list[Record]:
        records: list[Record] = []
        for index, layer in enumerate(self.layers):
            records += layer.records(f"{at}{index}.", x)
            x = records[-1].result
        return records

    def matrices(self, at: str = "") -> dict[str, Projection]:
        return {name: each for index, layer in enumerate(self.layers)
                for name, each in layer.matrices(f"{at}{index}.").items()}

    def vectors(self, at: str = "") -> dict[str, np.ndarray]:
        return {name: each for index, layer in enumerate(self.layers)
                for name, each in layer.vectors(f"{at}{index}.").items()}


# A model ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class NetworkLayer(Layer):
    """A network over frames as a layer. Raises ValueError for a language model."""

    model: QuantizedModel

    def __post_init__(self) -> None:
        if not self.model.is_network:
            raise ValueError("a language model is no layer: it takes tokens, and no frames")

    # mypy allows no property in place of a field; nothing assigns either.
    @property
    def profile(self) -> NumericProfile:  # type: ignore[override]
        """The profile of the model."""
        return self.model.profile

    @property
    def output(self) -> FixedPoint:  # type: ignore[override]
        """The format of its results."""
        return self.model.logit

    def records(self, at: str = "", x: str = "x") -> list[Record]:
        def moved(record: Record) -> Record:
            names: dict[str, Any] = {
                each.name: x if value == FRAMES else f"{at}{value}" for each in fields(record)
                if isinstance(value := getattr(record, each.name), str)}
            return replace(record, **names)

        return [moved(each) for each in self.model.records]

    def matrices(self, at: str = "") -> dict[str, Projection]:
        return {f"{at}{name}": each for name, each in self.model.projections.items()}

    def vectors(self, at: str = "") -> dict[str, np.ndarray]:
        return {f"{at}{name}": each for name, each in self.model.vectors.items()}


# Arguments ----------------------------------------------------------------------------


LayerOrWeights: TypeAlias = Layer | MatrixLayer | QuantizedModel | Ternary
"""Accepted as a layer: a layer, a network, or the ternary matrix of a BitLinear."""


def layer_of(
    layer_or_weights: LayerOrWeights, *, profile: NumericProfile | str | None = None,
    output: FixedPoint | None = None,
) -> Layer | MatrixLayer:
    """The layer itself, or the BitLinear of weights in these formats.

    Raises ValueError if the weights are invalid, or formats are given for a layer, which has its
    own.
    """
    if isinstance(layer_or_weights, QuantizedModel):
        layer_or_weights = NetworkLayer(layer_or_weights)
    if not isinstance(layer_or_weights, Layer | MatrixLayer):
        return BitLinearLayer.of(
            layer_or_weights, profile=S16 if profile is None else profile, output=output)
    if output is not None or profile is not None:
        raise _own_formats(layer_or_weights)
    return layer_or_weights


def matrix_layer_of(
    weights: MatrixLayer | Ternary, output: FixedPoint | None = None,
) -> MatrixLayer:
    """The layer itself, or the layer of a ternary matrix with this output format.

    Raises ValueError as :meth:`MatrixLayer.of` does, or if a format is given for a layer, which has
    its own.
    """
    if not isinstance(weights, MatrixLayer):
        return MatrixLayer.of(weights, output)
    if output is not None:
        raise _own_formats(weights)
    return weights


def _own_formats(layer: Layer | MatrixLayer) -> ValueError:
    return ValueError(
        f"a {type(layer).__name__} has its own formats: profile and output go with weights")
