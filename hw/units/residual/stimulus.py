"""Phases for the residual stream: a model's own updates, and extremes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.testbench.activations import Activations
from sterna.hw.testbench.payloads import UnitPorts
from sterna.hw.testbench.scoreboard import ScoredPhase
from sterna.hw.testbench.stimulus import Oracles, PhaseBuilder, Stimulus, last_flags
from sterna.hw.units.residual.params import ResidualParams
from sterna.model.config import ModelConfig
from sterna.model.profile import FixedPoint
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import saturate

__all__ = ["RESIDUAL_STIMULUS", "residual_phases", "residual_tensors"]


def residual_updates(config: ModelConfig) -> dict[str, str]:
    """Return the tap of each update of the residual stream, by the tap of its result."""
    updates = {"embedding.x": "embedding.x"}
    for layer in range(config.layers):
        updates |= {f"layer{layer}.mlgru.x": f"layer{layer}.mlgru.out.z",
                    f"layer{layer}.glu.x": f"layer{layer}.glu.down.z"}
    return updates


def residual_tensors(model: QuantizedModel) -> list[str]:
    """Taps of everything added to the residual stream, and of what it becomes."""
    updates = residual_updates(model.config)
    return list(dict.fromkeys([*updates, *updates.values()]))


def residual_phases(
    model: QuantizedModel, emitted: EmittedUnit, acts: Activations,
) -> list[ScoredPhase]:
    """Make the phases; every token loads its embedding first."""
    params: ResidualParams = emitted.params
    ports = UnitPorts.of(emitted.manifest)
    update_format = FixedPoint(model.profile.x.bits + 1, 0)

    def builder(tokens: Iterable[int]) -> PhaseBuilder:
        made = PhaseBuilder(ports)
        for token in tokens:
            for x, update in residual_updates(model.config).items():
                # Any value beyond the format gives the same sum.
                y = saturate(acts.reference[update][token], update_format)
                _add(made, params, token, y, x == "embedding.x",
                     (x, acts.reference[x][token], acts.onnx[x][token]))
        return made

    first = builder([0])
    # The load, and half of the first update.
    some = {"updates": params.words + max(1, params.words // 2)}
    return [
        builder(range(acts.tokens)).phase("real updates"),
        first.phase("no pauses", random_pauses=False),
        first.cut("cut in mid-vector", some),
        first.phase("after a reset in mid-vector", reset=True),
        _extremes(model.profile.x, params, ports).phase("extremes"),
    ]


def _add(
    builder: PhaseBuilder, params: ResidualParams, token: int, y: np.ndarray, load: bool,
    x: Oracles,
) -> None:
    builder.send("updates", {"y": y, "load": int(load)})
    builder.expect(token, "words", {
        "x": x, "last": (f"{x[0]}.last", last_flags(params.words), None)})


def _extremes(x_format: FixedPoint, params: ResidualParams, ports: UnitPorts) -> PhaseBuilder:
    """Both ends of both formats onto each other, a different pair on each channel."""
    y_format = FixedPoint(x_format.bits + 1, 0)
    starts = np.array([x_format.min, x_format.max, 0, -1, 1])
    ends = np.array([y_format.min, y_format.max, x_format.min, x_format.max, 0, -1, 1])
    channel = np.arange(params.channels)
    builder = PhaseBuilder(ports)
    for step in range(len(ends)):
        x = starts[(channel + step) % len(starts)]
        _add(builder, params, 0, x, True, (f"extreme({step}).load", x, None))
        for more in range(3):
            y = ends[(channel // len(starts) + step + more) % len(ends)]
            x = saturate(x + y, x_format)
            _add(builder, params, 0, y, False, (f"extreme({step}).x{more}", x, None))
    return builder


RESIDUAL_STIMULUS = Stimulus(residual_tensors, residual_phases)
