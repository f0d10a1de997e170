"""What the folder of the residual stream holds."""

from __future__ import annotations

from sterna.hw.emit.design import UnitDesign
from sterna.hw.units.residual.gateware import ResidualAdd
from sterna.hw.units.residual.params import ResidualParams
from sterna.model.quantized import QuantizedModel

__all__ = ["RESIDUAL_MODULE", "residual_design"]


RESIDUAL_MODULE = "residual_add"


def residual_design(model: QuantizedModel, params: ResidualParams) -> UnitDesign:
    """Design the residual stream of a model."""
    unit = ResidualAdd(params)
    return UnitDesign(
        unit, RESIDUAL_MODULE,
        derived=("words", "update_bits", "latency", "update_spacing"),
        summary=(f"The residual stream of one sequence: {params.channels} channels kept inside, "
                 f"added to {params.rows} at a time, numeric profile {model.profile.name}."),
        sections=_RESIDUAL_SECTION.format(
            params=params, x=params.profile.x,
            every="cycle" if params.update_spacing == 1 else f"{params.update_spacing} cycles",
            low=-(1 << (params.update_bits - 1)),
            high=(1 << (params.update_bits - 1)) - 1))


_RESIDUAL_SECTION = """\
## What to send

Vectors of {params.channels} channels in {params.words} words of {params.rows}, the last one
filled up with zeros; the unit counts the words itself. With `load` on every word of a vector it
becomes the residual stream; without, it is added to it, and each sum saturated to {x.bits} bits.
Saturate an update to the {params.update_bits} bits of `y` ({low} to {high}): any value beyond
gives the same sum.

One word per {every}. The new word is valid {params.latency} cycles after the cycle that took its
update; `last` is high with the last one of a vector. After a reset the first vector must be one
to load.
"""
