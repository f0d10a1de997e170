"""The unit ``core`` as a whole: its sizes and its folder."""

from __future__ import annotations

from dataclasses import replace

from sterna.hw.core.plan.params import COMPACT, CoreParams
from sterna.hw.core.vectors import core_vectors
from sterna.hw.core.verilog import CORE_MODULE, core_design
from sterna.hw.units.mac.base.style import ArrayStyle
from sterna.hw.units.spec import UnitSpec
from sterna.model.quantized import QuantizedModel

__all__ = ["CORE", "core_params"]


def core_params(
    model: QuantizedModel, *, rows: int = 8, cols: int = 128, sequences: int = 1,
    quant_lanes: int = 0, logits: bool = True, trace: bool = False,
    external_weights: bool = False, style: ArrayStyle = ArrayStyle.GENERIC,
    sampling: bool = True, routing_registers: bool = False,
    compact: bool = False,
) -> CoreParams:
    """Return the geometry of a core for a model; :class:`CoreParams` says what each size is.

    ``compact`` stands for the four of :data:`~sterna.hw.core.plan.params.COMPACT`.

    Raises
    ------
    ValueError
        If a size is out of its range, or two do not go together.
    """
    params = CoreParams(
        model.config, model.profile, rows, cols, sequences=sequences, quant_lanes=quant_lanes,
        logits=logits, trace=trace, external_weights=external_weights, style=style,
        sampling=sampling, routing_registers=routing_registers)
    return replace(params, **COMPACT) if compact else params


CORE = UnitSpec(
    "core", "the whole model", CORE_MODULE, core_params, core_design, None, tokens=64,
    vectors=core_vectors)
