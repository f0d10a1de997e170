"""Networks over frames with random weights, and frames for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from sterna.model.layers import (
    BitLinearLayer,
    GluLayer,
    InputLayer,
    MlgruLayer,
    ResidualLayer,
    SequentialLayer,
)
from sterna.model.profile import NumericProfile
from sterna.model.quantized import QuantizedModel

__all__ = ["random_frames", "random_network"]


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
