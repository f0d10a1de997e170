"""Phases for the sampler: a model's own logits, greedy and drawn, and extremes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.testbench.activations import Activations
from sterna.hw.testbench.payloads import UnitPorts
from sterna.hw.testbench.scoreboard import ScoredPhase
from sterna.hw.testbench.stimulus import PhaseBuilder, Stimulus
from sterna.hw.units.sampler.params import SamplerParams
from sterna.model.profile import FixedPoint
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.sampling import Sampler

__all__ = ["SAMPLER_STIMULUS", "sampler_phases", "sampler_tensors"]


def sampler_tensors(model: QuantizedModel) -> list[str]:
    """The tap of the logits."""
    return ["logits"]


def sampler_phases(
    model: QuantizedModel, emitted: EmittedUnit, acts: Activations,
) -> list[ScoredPhase]:
    """Make the phases; each begins with a fresh seed."""
    params: SamplerParams = emitted.params
    ports = UnitPorts.of(emitted.manifest)
    real, again = acts.reference["logits"], acts.onnx["logits"]
    few = min(acts.tokens, 4)

    def phase(
        name: str, temperature: float, seed: int, logits: np.ndarray,
        onnx: np.ndarray | None, *, reset: bool = False, random_pauses: bool = True,
    ) -> ScoredPhase:
        def sampler() -> Sampler:
            return Sampler(temperature=temperature, seed=max(seed, 1),
                           logit_frac=model.profile.logit.frac)

        builder = PhaseBuilder(ports)
        first = list(_tokens(sampler(), logits))
        second = [None] * len(logits) if onnx is None else list(_tokens(sampler(), onnx))
        for position, (token, other) in enumerate(zip(first, second, strict=True)):
            builder.send("logits", {"logits": logits[position]})
            builder.expect(position, "tokens", {"": ("token", token, other)})
        return builder.phase(
            name, reset=reset, random_pauses=random_pauses,
            levels={"beta": sampler().beta, "seed": seed}, pulse=("reseed",))

    cut = PhaseBuilder(ports)
    cut.send("logits", {"logits": real[0]})
    extremes = _extremes(params, model.profile.logit)
    return [
        phase("greedy", 0, 1, real, again),
        phase("temperature 0.7", 0.7, 12345, real, again),
        phase("no pauses, greedy", 0, 1, real[:few], again[:few], random_pauses=False),
        phase("no pauses, temperature 1", 1, 0, real[:few], again[:few], random_pauses=False),
        cut.cut("cut in mid-search", {"logits": params.words},
                cut_after=params.sampled_steps // 2,
                levels={"beta": Sampler(temperature=1).beta}),
        phase("after a reset in mid-search", 0.7, 99, real[:few], again[:few], reset=True),
        cut.cut("cut in mid-vector", {"logits": max(1, params.words // 2)}),
        phase("after a reset in mid-vector", 1.5, (1 << 32) - 1, real[:few], again[:few],
             reset=True),
        phase("extremes, greedy", 0, 1, extremes, None),
        phase("extremes, coldest", 0.01, 7, extremes, None),
        phase("extremes, hottest", 100, 7, extremes, None),
    ]


def _tokens(draw: Sampler, vectors: np.ndarray) -> Iterable[np.ndarray]:
    """The token that one sampler draws from each vector, one after the other."""
    return (np.array([draw(vector)]) for vector in vectors)


def _extremes(params: SamplerParams, logit: FixedPoint) -> np.ndarray:
    """Ties, one alone, both ends, and slopes; int64 ``[vectors, vocab]``."""
    low, high = logit.min, logit.max
    n = params.vocab
    ramp = np.arange(n)
    alone = [np.where(ramp == at, high, low) for at in (0, n // 2, n - 1)]
    return np.stack([
        np.full(n, low), np.full(n, high), np.zeros(n, dtype=np.int64), *alone,
        np.where(ramp % 2, high, low), np.where(ramp % 3, -1, 0),
        low + ramp * ((high - low) // n), high - ramp * ((high - low) // n)]).astype(np.int64)


SAMPLER_STIMULUS = Stimulus(sampler_tensors, sampler_phases)
