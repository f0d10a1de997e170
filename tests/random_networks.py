"""Networks over frames with random weights, and frames for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from sterna.model.layers import (
    BitLinearLayer,
    GluLayer,
    InputLayer,
    Layer,
    MlgruLayer,
    ResidualLayer,
    SequentialLayer,
    TernaryMatrix,
)
from sterna.model.profile import C12, S16, FixedPoint, NumericProfile
from sterna.model.quantized import QuantizedModel

__all__ = ["random_frames", "random_input", "random_layers", "random_network", "with_numbers"]


def random_network(
    profile: NumericProfile, seed: int, *, channels: int = 3, d: int = 8, dff: int = 12,
    layers: int = 1, outputs: int = 5,
) -> QuantizedModel:
    rng = np.random.default_rng(seed)

    def trits(rows: int, columns: int) -> np.ndarray:
        return rng.integers(-1, 2, (rows, columns))

    parts: list[Any] = [
        InputLayer.of(rng.normal(size=channels), rng.integers(-3, 3, channels),
                      4 + 4 * rng.random(channels), profile=profile),
        BitLinearLayer.of(trits(d, channels + 1), profile=profile, output=profile.x)]
    for _ in range(layers):
        parts += [
            ResidualLayer(MlgruLayer.of(*(trits(d, d) for _ in range(4)), profile=profile)),
            ResidualLayer(GluLayer.of(trits(dff, d), trits(dff, d), trits(d, dff),
                                      profile=profile))]
    parts.append(BitLinearLayer.of(trits(outputs, d), profile=profile, output=profile.logit))
    return SequentialLayer(parts).to_model({"seed": seed})


def random_frames(model: QuantizedModel, *shape: int, seed: int = 0) -> np.ndarray:
    rng, entry = np.random.default_rng(seed), model.entry
    frames = rng.integers(entry.low, entry.high + 1, (*shape, *entry.shape))
    return frames >> rng.integers(0, 14, (*shape, 1))


def with_numbers(weight: np.ndarray, rng: np.random.Generator) -> TernaryMatrix:
    """The matrix with a scale and a bias that make results use their range."""
    scale = 0.3 / np.sqrt(weight.shape[1])
    return TernaryMatrix(weight, float(scale), 4 * rng.normal(size=len(weight)))


def random_input(channels: int, profile: NumericProfile, rng: np.random.Generator) -> InputLayer:
    """Shifts to both sides, and offsets up to half of what a channel may have."""
    largest = np.ldexp(rng.uniform(1, 2, channels), rng.integers(-9, 9, channels))
    exponent = rng.integers(-1, 8, channels) - np.frexp(largest)[1]
    return InputLayer.of(largest * rng.uniform(-0.5, 0.5, channels), exponent, largest,
                         profile=profile)


def random_layers(seed: int, widest: int) -> SequentialLayer:
    """Up to five layers of any widths, of which some add to their input, with another before them
    or not; every fifth network has an input in front."""
    rng = np.random.default_rng(seed)
    profile = (S16, C12)[int(rng.integers(2))]

    def drawn() -> int:
        return int(rng.integers(1, widest + 1))

    def layer(columns: int, rows: int, output: FixedPoint | None) -> Layer:
        kind, inner = int(rng.integers(3)), drawn()
        shapes = [(rows, columns)] if not kind else [
            *[(inner, columns)] * (4 - kind), (rows, inner)]
        of = (BitLinearLayer.of, MlgruLayer.of, GluLayer.of)[kind]
        return of(*(with_numbers(rng.integers(-1, 2, shape), rng) for shape in shapes),
                  profile=profile, output=output)

    width, layers, count = drawn(), [], int(rng.integers(1, 6))
    if seed % 5 == 0 and width > 1:
        layers.append(random_input(width - 1, profile, np.random.default_rng(seed)))
    for index in range(count):
        between = drawn()
        # What another layer normalises or adds to has the bits of the residual stream.
        match int(rng.integers(4)):
            case 0:
                layers.append(ResidualLayer(layer(width, width, profile.x)))
            case 1:
                layers.append(ResidualLayer(SequentialLayer([
                    layer(width, between, profile.x), layer(between, width, profile.x)])))
            case _:
                last = index == count - 1
                layers.append(layer(width, between, None if last else profile.x))
                width = between
    return SequentialLayer(layers)
