"""The unit ``glu``: its sizes, the texts of its folder, its stimulus."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sterna.hw.emit.folder import EmittedUnit, UnitDesign
from sterna.hw.emit.payloads import UnitPorts
from sterna.hw.testbench.scoreboard import ScoredPhase
from sterna.hw.testbench.stimulus import (
    SPREAD,
    Activations,
    Oracles,
    PhaseBuilder,
    Stimulus,
    last_flags,
)
from sterna.hw.units.glu import GluParams, GluUnit
from sterna.hw.units.spec import UnitSpec, usual_phases
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerRecords
from sterna.model.quantized.records import glu_cell

__all__ = ["GLU"]


def glu_design(model: QuantizedModel, params: GluParams) -> UnitDesign:
    unit = GluUnit(params, model.sigmoid.tolist())
    trace = ("\nWith them comes `silu`, the activated gate, for verification.\n"
             if params.trace else "")
    return UnitDesign(
        unit, "glu_unit", derived=("latency",),
        summary=(f"The gated product silu(gate) * up of the channel mixer, {params.lanes} "
                 f"channels per beat, numeric profile {model.profile.name}."),
        sections=_GLU_SECTION.format(params=params) + trace)


_GLU_SECTION = """\
## What to send

The vectors of gate and up side by side, {params.lanes} channels a beat, in any order: the unit
keeps nothing from one beat to the next. `last` travels with its beat and changes nothing. Fill up
the last beat of a vector with zeros; their products are zero.

One beat per cycle. The products of a beat are valid {params.latency} cycles after the cycle that
took it, plus the cycles in which products waited to be taken, for the whole pipeline waits with
them.
"""


def glu_tensors(model: QuantizedModel) -> list[str]:
    return [f"layer{layer}.glu.{part}" for layer in range(model.config.layers)
            for part in ("gate.z", "up.z", "gate.silu", "p")]


def glu_phases(model: QuantizedModel, emitted: EmittedUnit, acts: Activations) -> list[ScoredPhase]:
    params: GluParams = emitted.params
    ports = UnitPorts.of(emitted.manifest)

    def builder(tokens: Iterable[int]) -> PhaseBuilder:
        made = PhaseBuilder(ports)
        for token in tokens:
            for layer in range(model.config.layers):
                at = f"layer{layer}.glu"
                silu, p = (
                    (f"{at}.{part}", acts.reference[f"{at}.{part}"][token],
                     acts.onnx[f"{at}.{part}"][token]) for part in ("gate.silu", "p"))
                _add(made, params, token,
                     acts.reference[f"{at}.gate.z"][token],
                     acts.reference[f"{at}.up.z"][token], silu, p)
        return made

    some = {"preacts": max(1, -(-model.config.dff // params.lanes) // 2)}
    return usual_phases(acts, builder, some, _extremes(model, params, ports))


def _add(
    builder: PhaseBuilder, params: GluParams, token: int, gate: np.ndarray, up: np.ndarray,
    silu: Oracles, p: Oracles,
) -> None:
    flags = last_flags(-(-gate.size // params.lanes))
    sent: dict[str, np.ndarray | int] = {"gate": gate, "up": up, "last": flags}
    expected = {"p": p, "last": (f"{p[0]}.last", flags, None)}
    if params.trace:
        expected["silu"] = silu
    builder.send("preacts", sent)
    builder.expect(token, "products", expected)


def _extremes(model: QuantizedModel, params: GluParams, ports: UnitPorts) -> PhaseBuilder:
    """Every pair of values at the ends of the range and around zero, on every lane; then products
    just within their range, and values of the whole range, in vectors of one or two beats."""
    z, rng = model.profile.z, np.random.default_rng(1)
    corners = np.array([z.min, z.min + 1, -1, 0, 1, z.max - 1, z.max])
    gate, up = (each.reshape(-1) for each in np.meshgrid(corners, corners))
    builder, cell = PhaseBuilder(ports), IntegerRecords(
        glu_cell(model.profile, "glu", params.lanes), {}, model.sigmoid)
    pairs = [(np.roll(gate, shift), np.roll(up, shift)) for shift in range(params.lanes)]
    most = (model.profile.p.max + 1 << model.profile.product_shift) - 1
    for index in range(SPREAD):
        gates, ups = (rng.integers(z.min, z.max + 1, (1 + index % 2) * params.lanes)
                      for _ in range(2))
        if index % 4 == 0:      # rounding up exceeds the format at one end at most
            gates = np.minimum(np.abs(gates) | z.max // 2, z.max)
            silu, _ = _products(cell, gates, ups)
            ups = np.clip(np.sign(ups) * (most // silu), z.min, z.max)
        pairs.append((gates, ups))
    for shift, (gates, ups) in enumerate(pairs):
        silu, p = _products(cell, gates, ups)
        _add(builder, params, 0, gates, ups,
             (f"extreme({shift}).silu", silu, None), (f"extreme({shift}).p", p, None))
    return builder


def _products(
    cell: IntegerRecords, gate: np.ndarray, up: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """``silu(gate)``, and its product with ``up``."""
    values = {"glu.gate.z": gate, "glu.up.z": up}
    p, _ = cell.run(values)
    return values["glu.gate.silu"], p


def glu_params(
    model: QuantizedModel, *, lanes: int = 8, trace: bool = False,
) -> GluParams:
    return GluParams(model.profile, lanes, trace)


GLU = UnitSpec(
    "glu", "the gated product of the channel mixer",
    "glu_unit", glu_params, glu_design, Stimulus(glu_tensors, glu_phases), tokens=16)
