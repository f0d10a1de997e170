"""The unit ``sampler`` as a whole: its sizes, its folder, its stimulus."""

from __future__ import annotations

from sterna.hw.units.sampler.params import SamplerParams
from sterna.hw.units.sampler.stimulus import SAMPLER_STIMULUS
from sterna.hw.units.sampler.verilog import SAMPLER_MODULE, sampler_design
from sterna.hw.units.spec import UnitSpec
from sterna.model.quantized import QuantizedModel

__all__ = ["SAMPLER", "sampler_params"]


def sampler_params(model: QuantizedModel, *, rows: int = 8) -> SamplerParams:
    """Return the geometry of the sampler of a model; ValueError if a size is out of range."""
    return SamplerParams(model.profile, rows, model.config.vocab)


SAMPLER = UnitSpec(
    "sampler", "the choice of the next token",
    SAMPLER_MODULE, sampler_params, sampler_design, SAMPLER_STIMULUS, tokens=32)
