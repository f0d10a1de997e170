"""What the folder of the weight memory holds."""

from __future__ import annotations

from sterna.hw.emit.design import UnitDesign
from sterna.hw.units.mac.base.params import MacParams
from sterna.hw.units.mac.verilog import MAC_MODULE, packed_weights
from sterna.hw.units.weights.gateware import WeightRom
from sterna.hw.units.weights.params import WeightRomParams
from sterna.model.quantized import QuantizedModel

__all__ = ["WEIGHTS_MODULE", "weights_design"]


WEIGHTS_MODULE = "weight_rom"


def weights_design(model: QuantizedModel, array: MacParams) -> UnitDesign:
    """Design the memory of a model's packed weights, for an array."""
    words, index = packed_weights(model, array)
    params = WeightRomParams(len(words), array.word_bits)
    unit = WeightRom(params, words)
    return UnitDesign(
        unit, WEIGHTS_MODULE, derived=("latency",),
        summary=(f"The weights of every projection in a memory of {params.words} words of "
                 f"{params.word_bits} bits, packed for an array of {array.rows} rows by "
                 f"{array.cols} columns."),
        sections=_WEIGHTS_SECTION.format(params=params, array=array, module=MAC_MODULE),
        extra={"array": {"rows": array.rows, "cols": array.cols,
                         "max_columns": array.max_columns, "style": array.style},
               "weights": {"lines": len(words), "projections": index}})


_WEIGHTS_SECTION = """\
## What to send

Requests: `count` words from word `first` on. `params.json` gives, under `weights`, `first_line` and
`lines` of every projection. A word is the low {params.word_bits} bits of `beats__payload` of the
array `{module}` with rows {array.rows} and cols {array.cols}; only the activations are to be added.

The first word is valid {params.latency} cycles after the cycle that took its request, then there is
one per cycle. A further request may be taken meanwhile; its words follow without a gap.
"""
