"""The unit ``glu`` as a whole: its sizes, its folder, its stimulus."""

from __future__ import annotations

from sterna.hw.units.glu.params import GluParams
from sterna.hw.units.glu.stimulus import GLU_STIMULUS
from sterna.hw.units.glu.verilog import GLU_MODULE, glu_design
from sterna.hw.units.spec import UnitSpec
from sterna.model.quantized import QuantizedModel

__all__ = ["GLU", "glu_params"]


def glu_params(
    model: QuantizedModel, *, lanes: int = 8, sequences: int = 1, trace: bool = False,
) -> GluParams:
    """Return the geometry of the GLU unit of a model; ValueError if a size is out of range."""
    return GluParams(model.profile, lanes, sequences, trace)


GLU = UnitSpec(
    "glu", "the gated product of the channel mixer",
    GLU_MODULE, glu_params, glu_design, GLU_STIMULUS, tokens=16)
