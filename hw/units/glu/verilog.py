"""What the folder of the GLU unit holds."""

from __future__ import annotations

from sterna.hw.emit.design import UnitDesign
from sterna.hw.units.glu.gateware import GluUnit
from sterna.hw.units.glu.params import GluParams
from sterna.model.quantized import QuantizedModel

__all__ = ["GLU_MODULE", "glu_design"]

GLU_MODULE = "glu_unit"


def glu_design(model: QuantizedModel, params: GluParams) -> UnitDesign:
    """Design the GLU product of a model."""
    unit = GluUnit(params, model.sigmoid.tolist())
    trace = ("\nWith them comes `silu`, the activated gate, for verification.\n"
             if params.trace else "")
    return UnitDesign(
        unit, GLU_MODULE, derived=("latency",),
        summary=(f"The gated product silu(gate) * up of the channel mixer, {params.lanes} "
                 f"channels per beat, numeric profile {model.profile.name}."),
        sections=_GLU_SECTION.format(params=params) + trace)


_GLU_SECTION = """\
## What to send

The vectors of gate and up side by side, {params.lanes} channels a beat, in any order: the unit
keeps nothing from one beat to the next. `last` (and `sequence`, if there is one) travels with its
beat and changes nothing. Fill up the last beat of a vector with zeros; their products are zero.

One beat per cycle. The products of a beat are valid {params.latency} cycles after the cycle that
took it, plus the cycles in which products waited to be taken, for the whole pipeline waits with
them.
"""


