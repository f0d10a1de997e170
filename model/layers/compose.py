"""Layers one after the other, and around them a residual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sterna.model.layers.layer import Layer, State, input_bits
from sterna.model.profile import FixedPoint, NumericProfile
from sterna.model.quantized.integer import saturate
from sterna.model.quantized.taps import Tap

__all__ = ["ResidualLayer", "SequentialLayer"]

Array = Any


@dataclass(frozen=True, slots=True, eq=False)
class ResidualLayer(Layer):
    """``y = saturate(x + layer(x))`` in the format of the residual stream, ``profile.x``.

    Raises
    ------
    ValueError
        If the layer does not give as many values as it takes, or another fraction than the
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

    # In place of a field, which a property may not replace for mypy; nothing assigns either.
    @property
    def profile(self) -> NumericProfile:  # type: ignore[override]
        """That of the layer."""
        return self.layer.profile

    @property
    def output(self) -> FixedPoint:  # type: ignore[override]
        """The format of the residual stream."""
        return self.layer.profile.x

    @property
    def rows(self) -> int:
        return self.layer.rows

    @property
    def columns(self) -> int:
        return self.layer.columns

    @property
    def states(self) -> tuple[int, ...]:
        return self.layer.states

    @property
    def input(self) -> FixedPoint:
        return self.layer.profile.x

    def unsaturated(self, x: Array, state: State, at: str, tap: Tap) -> tuple[Array, State]:
        y, state = self.layer.unsaturated(x, state, at, tap)
        return x + y, state


@dataclass(frozen=True, slots=True, eq=False)
class SequentialLayer(Layer):
    """Layers one after the other.

    Raises
    ------
    ValueError
        If there is none, they have different profiles, the values that one gives are not as
        many as the next one takes, are wider than a norm takes, or have another format than
        the residual stream where the next layer adds to it.
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
            if one.output.bits > input_bits(one.profile):
                raise ValueError(
                    f"layer {index} gives {one.output.bits} bits, and a norm takes up to "
                    f"{input_bits(one.profile)}")
            if following.input not in (None, one.output):
                raise ValueError(
                    f"layer {index + 1} adds to its input, which must have the format "
                    f"{following.input}; layer {index} gives {one.output}")

    # In place of a field, which a property may not replace for mypy; nothing assigns either.
    @property
    def profile(self) -> NumericProfile:  # type: ignore[override]
        """That of all layers."""
        return self.layers[0].profile

    @property
    def output(self) -> FixedPoint:  # type: ignore[override]
        """The format of the last layer."""
        return self.layers[-1].output

    @property
    def rows(self) -> int:
        return self.layers[-1].rows

    @property
    def columns(self) -> int:
        return self.layers[0].columns

    @property
    def input(self) -> FixedPoint | None:
        return self.layers[0].input

    @property
    def states(self) -> tuple[int, ...]:
        return tuple(channels for layer in self.layers for channels in layer.states)

    def unsaturated(self, x: Array, state: State, at: str, tap: Tap) -> tuple[Array, State]:
        new: State = ()
        for index, layer in enumerate(self.layers):
            own, state = state[:len(layer.states)], state[len(layer.states):]
            x, after = layer.unsaturated(x, own, f"{at}{index}.", tap)
            new += after
            if index + 1 < len(self.layers):
                x = saturate(x, layer.output)
                tap(f"{at}{index}.y", x)
        return x, new
