"""The unit ``mlgru`` as a whole: its sizes, its folder, its stimulus."""

from __future__ import annotations

from sterna.hw.units.mlgru.params import MlgruParams
from sterna.hw.units.mlgru.stimulus import MLGRU_STIMULUS
from sterna.hw.units.mlgru.verilog import MLGRU_MODULE, mlgru_design
from sterna.hw.units.spec import UnitSpec
from sterna.model.quantized import QuantizedModel

__all__ = ["MLGRU", "mlgru_params"]


def mlgru_params(
    model: QuantizedModel, *, lanes: int = 8, sequences: int = 1, trace: bool = False,
) -> MlgruParams:
    """Return the geometry of the MLGRU unit of a model.

    Raises
    ------
    ValueError
        If ``lanes`` does not divide the channels, or a size is out of its range.
    """
    return MlgruParams(
        model.profile, model.config.layers, model.config.d, lanes, sequences, trace)


MLGRU = UnitSpec(
    "mlgru", "the recurrence with its state memory and sigmoid tables",
    MLGRU_MODULE, mlgru_params, mlgru_design, MLGRU_STIMULUS, tokens=64)
