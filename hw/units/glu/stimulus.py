"""Phases for the GLU product: a model's own gates, and extremes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.testbench.activations import Activations
from sterna.hw.testbench.payloads import UnitPorts
from sterna.hw.testbench.plan import Plan, Planner
from sterna.hw.testbench.script import Oracles, Script, last_flags
from sterna.hw.units.glu.params import GluParams
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import glu_product

__all__ = ["GLU_PLANNER", "glu_plans", "glu_tensors"]


def glu_tensors(model: QuantizedModel) -> list[str]:
    """Taps of the pre-activations and of the products of every layer."""
    return [f"layer{layer}.glu.{part}" for layer in range(model.config.layers)
            for part in ("gate.z", "up.z", "gate.silu", "p")]


def glu_plans(model: QuantizedModel, emitted: EmittedUnit, acts: Activations) -> list[Plan]:
    """Plan the phases; with two streams, layers take turns.

    Parameters
    ----------
    model
        The quantised model.
    emitted
        The unit as it was emitted.
    acts
        Tensors of the text that is run.
    """
    params: GluParams = emitted.params
    ports = UnitPorts.of(emitted.manifest)

    def script(tokens: Iterable[int]) -> Script:
        made = Script(ports)
        for token in tokens:
            for layer in range(model.config.layers):
                at = f"layer{layer}.glu"
                silu, p = (
                    (f"{at}.{part}", acts.reference[f"{at}.{part}"][token],
                     acts.onnx[f"{at}.{part}"][token]) for part in ("gate.silu", "p"))
                _add(made, params, layer % params.streams, token,
                     acts.reference[f"{at}.gate.z"][token],
                     acts.reference[f"{at}.up.z"][token], silu, p)
        return made

    first = script([0])
    some = {"preacts": max(1, -(-model.config.dff // params.lanes) // 2)}
    return [
        script(range(acts.tokens)).plan("real vectors"),
        first.plan("no pauses", stalls=False),
        first.cut("cut in mid-vector", some),
        first.plan("after a reset in mid-vector", reset=True),
        _extremes(model, params, ports).plan("extremes"),
    ]


def _add(
    script: Script, params: GluParams, sequence: int, token: int, gate: np.ndarray,
    up: np.ndarray, silu: Oracles, p: Oracles,
) -> None:
    flags = last_flags(-(-gate.size // params.lanes))
    sent: dict[str, np.ndarray | int] = {"gate": gate, "up": up, "last": flags}
    expected = {"p": p, "last": (f"{p[0]}.last", flags, None)}
    if params.trace:
        expected["silu"] = silu
    stream = "products"
    if params.streams > 1:
        sent["sequence"], stream = sequence, f"products[{sequence}]"
    script.send("preacts", sent)
    script.expect(token, stream, expected)


def _extremes(model: QuantizedModel, params: GluParams, ports: UnitPorts) -> Script:
    """Both ends of the range and the values around zero, every pair of them on every lane."""
    z = model.profile.z
    corners = np.array([z.min, z.min + 1, -1, 0, 1, z.max - 1, z.max])
    gate, up = (each.reshape(-1) for each in np.meshgrid(corners, corners))
    script = Script(ports)
    for shift in range(params.lanes):
        gates, ups = np.roll(gate, shift), np.roll(up, shift)
        silu, p = glu_product(gates, ups, model.sigmoid.astype(np.int64), model.profile)
        _add(script, params, shift % params.streams, 0, gates, ups,
             (f"extreme({shift}).silu", silu, None), (f"extreme({shift}).p", p, None))
    return script


GLU_PLANNER = Planner(glu_tensors, glu_plans)
