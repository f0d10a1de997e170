"""The unit ``residual`` as a whole: its sizes, its folder, its stimulus."""

from __future__ import annotations

from sterna.hw.units.residual.params import ResidualParams
from sterna.hw.units.residual.stimulus import RESIDUAL_STIMULUS
from sterna.hw.units.residual.verilog import RESIDUAL_MODULE, residual_design
from sterna.hw.units.spec import UnitSpec
from sterna.model.quantized import QuantizedModel

__all__ = ["RESIDUAL", "residual_params"]


def residual_params(model: QuantizedModel, *, rows: int = 8) -> ResidualParams:
    """Return the geometry of the residual stream; ValueError if a size is out of range."""
    return ResidualParams(model.profile, rows, model.config.d)


RESIDUAL = UnitSpec(
    "residual", "the residual stream, kept in a memory that is added to",
    RESIDUAL_MODULE, residual_params, residual_design, RESIDUAL_STIMULUS, tokens=32)
