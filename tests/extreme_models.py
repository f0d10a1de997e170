"""Models at the ends of what the formats allow: what must stay exact, and in its ranges."""

from __future__ import annotations

import dataclasses

import numpy as np
from conftest import replace_weights

from sterna.model.quantized import Projection, QuantizedModel


def _embedding(model: QuantizedModel, *values: int) -> QuantizedModel:
    return dataclasses.replace(
        model, table=np.resize(np.array(values, dtype=np.int16), model.embedding.shape))


def _every_shift(model: QuantizedModel, shift: int) -> QuantizedModel:
    return dataclasses.replace(model, projections={
        name: Projection(p.weight, p.bias, p.k, shift)
        for name, p in model.projections.items()})


def _saturating_biases(model: QuantizedModel) -> QuantizedModel:
    def ends(name: str) -> list[int]:
        reach = 1 << (model.profile.bias_bits(name) - 1)
        return [-reach, reach - 1]

    return dataclasses.replace(model, projections={
        name: Projection(p.weight, np.resize(np.int32(ends(name)), p.bias.shape), p.k, p.shift)
        for name, p in model.projections.items()})


EXTREMES = {
    "all-zero weights": lambda m: replace_weights(m, 0),
    "all-one weights": lambda m: replace_weights(m, 1),
    "all-minus-one weights": lambda m: replace_weights(m, -1),
    "zero embedding": lambda m: _embedding(m, 0),
    "lowest embedding": lambda m: _embedding(m, m.profile.x.min),
    "one-hot embedding": lambda m: _embedding(m, m.profile.x.max, *[0] * (m.config.d - 1)),
    "saturating biases": _saturating_biases,
    "smallest shifts": lambda m: _every_shift(m, 1),
    "largest shifts": lambda m: _every_shift(_saturating_biases(m), m.profile.max_shift),
    "everything at once": lambda m: _saturating_biases(
        _embedding(replace_weights(m, 1), m.profile.x.min)),
}
"""What becomes of a model, by name."""
