"""The units that can be emitted, and emitting one by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sterna.hw.core.verilog import core_design
from sterna.hw.emit.design import UnitDesign
from sterna.hw.emit.folder import EmittedUnit, emit_component
from sterna.hw.units.embedding.verilog import embedding_design
from sterna.hw.units.glu.verilog import glu_design
from sterna.hw.units.mac.base.style import ArrayStyle
from sterna.hw.units.mac.verilog import mac_design
from sterna.hw.units.mlgru.verilog import mlgru_design
from sterna.hw.units.norm.verilog import norm_design
from sterna.hw.units.residual.verilog import residual_design
from sterna.hw.units.sampler.verilog import sampler_design
from sterna.hw.units.spec import Unit, UnitSizes
from sterna.hw.units.weights.verilog import weights_design
from sterna.model.quantized import QuantizedModel

__all__ = ["emit_verilog"]


_DESIGNS: dict[Unit, Callable[[QuantizedModel, UnitSizes], UnitDesign]] = {
    Unit.MAC: mac_design,
    Unit.MLGRU: mlgru_design,
    Unit.NORM: norm_design,
    Unit.GLU: glu_design,
    Unit.RESIDUAL: residual_design,
    Unit.EMBEDDING: embedding_design,
    Unit.SAMPLER: sampler_design,
    Unit.WEIGHTS: weights_design,
    Unit.CORE: core_design,
}
"""How each unit is made for a model; a new one needs a line here and a file of its own."""


def emit_verilog(
    model: QuantizedModel, unit: str, out_dir: str | Path, *,
    rows: int = 8, cols: int = 128, lanes: int = 8, streams: int = 1, trace: bool = False,
    quant_lanes: int = 0, logits: bool = True, external_weights: bool = False,
    style: ArrayStyle | str = ArrayStyle.GENERIC, sampling: bool = True,
    far_registers: bool = False,
) -> EmittedUnit:
    """Emit one unit for a model.

    Parameters
    ----------
    model
        The quantised model.
    unit
        A value of :class:`sterna.hw.units.spec.Unit`, ``"mac"`` for example.
    out_dir
        Folder to write; see :func:`sterna.model.folder.write_folder` for when it is refused.
    rows, cols, lanes, streams, trace, quant_lanes, logits, external_weights, style,
    sampling, far_registers
        Sizes; see :class:`sterna.hw.units.spec.UnitSizes`. A unit reads those it has.

    Raises
    ------
    ValueError
        If there is no such unit, its size does not fit the model, or the folder is refused.
    OSError
        If the folder cannot be written.
    """
    if unit not in list(Unit):
        raise ValueError(f"unit must be one of {', '.join(map(str, Unit))}, got {unit!r}")
    design = _DESIGNS[Unit(unit)](model, UnitSizes(
        rows, cols, lanes, streams, trace, quant_lanes, logits, external_weights,
        ArrayStyle(style), sampling, far_registers))
    return emit_component(model, design, out_dir)
