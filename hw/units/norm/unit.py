"""The unit ``norm`` as a whole: its sizes, its folder, its stimulus."""

from __future__ import annotations

from sterna.hw.units.norm.params import NormParams
from sterna.hw.units.norm.stimulus import NORM_STIMULUS
from sterna.hw.units.norm.verilog import NORM_MODULE, norm_design
from sterna.hw.units.spec import UnitSpec
from sterna.model.quantized import QuantizedModel

__all__ = ["NORM", "norm_params"]


def norm_params(
    model: QuantizedModel, *, rows: int = 8, lanes: int = 8, sequences: int = 1,
    trace: bool = False,
) -> NormParams:
    """Return the geometry of the unit that normalises every vector of a model.

    Raises
    ------
    ValueError
        If ``lanes`` is no multiple of ``rows``, or a size is out of its range.
    """
    return NormParams(
        model.profile, rows, lanes, max(model.config.d, model.config.dff), sequences, trace)


NORM = UnitSpec(
    "norm", "normalisation and quantisation of a vector to 8-bit activations",
    NORM_MODULE, norm_params, norm_design, NORM_STIMULUS, tokens=8)
