"""What the folder of the normalisation unit holds."""

from __future__ import annotations

from sterna.hw.emit.design import UnitDesign
from sterna.hw.units.norm.gateware import NormQuant
from sterna.hw.units.norm.params import NormParams
from sterna.model.quantized import QuantizedModel

__all__ = ["NORM_MODULE", "norm_design"]

NORM_MODULE = "norm_quant"


def norm_design(model: QuantizedModel, params: NormParams) -> UnitDesign:
    """Design the unit that normalises and quantises every vector of a model."""
    unit = NormQuant(params)
    sections = [_SECTION.format(params=params)]
    if params.sequences > 1:
        sections.append(_SEQUENCES_SECTION)
    if params.trace:
        sections.append(_TRACE_SECTION)
    return UnitDesign(
        unit, NORM_MODULE,
        derived=("y_bits", "banks", "depth", "max_steps", "reciprocal_steps",
                 "first_chunk_steps", "scale_steps", "idle_steps"),
        summary=(f"RMS normalisation and absmax quantisation of vectors of up to "
                 f"{params.channels} channels to 8-bit activations: {params.rows} channels per "
                 f"word in, {params.lanes} activations per cycle out, numeric profile "
                 f"{model.profile.name}."),
        sections="\n".join(sections))


_SECTION = """\
## What to send

A vector in words of {params.rows} channels, `last` high with its last word, which is filled up
with zeros. The vector may have any length up to {params.channels}; x, o and p of the model all
pass here, sign-extended to {params.y_bits} bits.

## What comes back

`acts`: the 8-bit activations q, {params.lanes} a word, zeros beyond the end of the vector; `last`
is high with the last word. Then `scales`: v, the factor that turns a dot product with q back into
one with the normalised vector, with {params.profile.scale_frac} fraction bits.

An idle unit raises `service` {params.max_steps} cycles after the cycle that took the last word of
a vector, offers the first word of `acts` {params.first_chunk_steps} cycles after that and another
in each cycle after one was taken, and offers `scales` {params.scale_steps} cycles after the last
word of `acts` was taken. It works on one vector at a time, and begins with the next
{params.idle_steps} cycle after the scale was taken. Words of the next vector are taken before
that, from the cycle on in which the last word of `acts` is offered.
"""

_SEQUENCES_SECTION = """\
## Two sequences

Each sequence has an input of its own; if both have a vector waiting, the one not served last
comes first. `sequence` says whose activations and scale come out, and `service_sequence` whose
vector is begun.
"""

_TRACE_SECTION = """\
## Trace

`scales` also carries the absolute maximum `m`, its reciprocal `r`, the sum of squares `s` of q
and its root `n`.
"""
