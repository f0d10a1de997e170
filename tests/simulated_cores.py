"""Cores to simulate: dimensions that divide by nothing, extremes, both profiles."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from conftest import replace_weights

from sterna.hw.core.compute.request import Request
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.core.params.limits import Limits
from sterna.model.config import ModelConfig
from sterna.model.profile import PROFILES
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.synthetic import random_model
from sterna.sim.core.reference import answer

__all__ = ["SHAPES", "SMALL", "Shape", "assert_same_model", "params_of", "requests"]

SMALL = {"rows": 4, "cols": 8, "clusters": 2, "post_lanes": 2, "cell_lanes": 1, "quant_lanes": 4}
"""Sizes of a small core of which every part is there more than once."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A model and the size of its core.

    ``kind``: ``random``, or what is extreme: ``plus`` or ``minus`` (every weight 1 or -1),
    ``zero`` (every weight 0, so every accumulator is), ``ends`` (embedding and biases at
    the ends of their formats).
    """

    config: ModelConfig
    profile: str
    rows: int
    cols: int
    sequences: int = 1
    kind: str = "random"
    quant_lanes: int = 0

    @property
    def name(self) -> str:
        """A name for test reports."""
        c = self.config
        return (f"{self.profile}-d{c.d}-L{c.layers}-dff{c.dff}-v{c.vocab}-{self.rows}x{self.cols}"
                f"-s{self.sequences}-{self.kind}")

    def model(self) -> QuantizedModel:
        """The model, always the same."""
        model = random_model(self.config, PROFILES[self.profile], seed=self.config.d)
        if self.kind in ("plus", "minus", "zero"):
            return replace_weights(model, {"plus": 1, "minus": -1, "zero": 0}[self.kind])
        if self.kind == "random":
            return model
        projections = dict(model.projections)
        for name, p in projections.items():
            if name != "head":
                fmt = model.profile.output_format(name)
                third = np.arange(p.bias.size) % 3
                bias = np.select([third == 0, third == 1], [fmt.min, fmt.max], p.bias)
                projections[name] = replace(p, bias=bias.astype(np.int32))
        odd = np.indices(model.embedding.shape).sum(axis=0) % 2
        embedding = np.where(odd, model.profile.x.max, model.profile.x.min).astype(np.int32)
        return replace(model, projections=projections, table=embedding)


SHAPES = [
    Shape(ModelConfig(12, 2, 21, 65), "S16", 4, 8),
    Shape(ModelConfig(12, 2, 21, 65), "C12", 4, 8, sequences=2),
    Shape(ModelConfig(10, 1, 7, 65), "S16", 1, 8, sequences=2),
    Shape(ModelConfig(10, 1, 13, 65), "C12", 1, 8),
    Shape(ModelConfig(16, 1, 40, 1000), "S16", 8, 16, sequences=2),
    Shape(ModelConfig(33, 3, 50, 20), "S16", 3, 12, sequences=2, kind="minus"),
    Shape(ModelConfig(40, 1, 24, 30), "C12", 8, 40, kind="plus"),
    Shape(ModelConfig(20, 4, 20, 33), "S16", 4, 4, kind="ends"),
    Shape(ModelConfig(64, 1, 96, 128), "C12", 16, 32, sequences=2, quant_lanes=16),
    Shape(ModelConfig(5, 1, 9, 2), "S16", 2, 4, sequences=2, kind="zero"),
    Shape(ModelConfig(3, 2, 5, 7), "C12", 5, 5, sequences=2),
    Shape(ModelConfig(6, 1, 10, 20), "S16", 4, 32),
    Shape(ModelConfig(50, 2, 30, 40), "C12", 2, 16, sequences=2, kind="ends", quant_lanes=2),
]


def assert_same_model(model: QuantizedModel, expected: QuantizedModel) -> None:
    """Fail if a model that was unpacked has another shape or another number in it."""
    assert model.config == expected.config
    for name, projection in expected.projections.items():
        other = model.projections[name]
        np.testing.assert_array_equal(other.weight, projection.weight)
        np.testing.assert_array_equal(other.bias, projection.bias)
        assert (other.k, other.shift) == (projection.k, projection.shift), name
    np.testing.assert_array_equal(model.embedding, expected.embedding)
    np.testing.assert_array_equal(model.sigmoid, expected.sigmoid)


def requests(params: CoreParams, model: QuantizedModel) -> list[tuple[int, Request]]:
    """A distinct prompt for each sequence; then those that are done are replaced, one goes on.

    The longest answer ends early, with a token that it has. A compact core draws no tokens.
    """
    vocab, sequences = model.config.vocab, params.sequences
    temperatures = (0.0, 0.0, 0.0) if params.compact else (0.0, 0.7, 30.0)
    rng = np.random.default_rng(sequences)

    def request(sequence: int, **changes) -> Request:
        prompt = tuple(map(int, rng.integers(0, vocab, size=1 + sequence % 3)))
        usual = Request(prompt, 2 + sequence % 3, temperatures[sequence % 3], 5 + sequence)
        return replace(usual, **changes)

    first = [(each, request(each)) for each in range(sequences)]
    longest = replace(first[-1][1], tokens=9)
    stop, = answer(IntegerModel(model), [longest])
    longest = replace(longest, stop_token=stop.generated[5])
    return [*first[:-1], (sequences - 1, longest), (0, request(0, tokens=3, start=False)),
            *((each, request(each + 1)) for each in range(1, sequences // 2)),
            (0, request(0, tokens=0, prompt=(1, 0, 1), predict=(True, False, True)))]


def params_of(model: QuantizedModel, **changes) -> CoreParams:
    """A small core whose limits are a model's."""
    return CoreParams(Limits.of(model), **(SMALL | changes))
