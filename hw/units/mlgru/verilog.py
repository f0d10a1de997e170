"""What the folder of the MLGRU unit holds: its formats, sigmoid table and state memory."""

from __future__ import annotations

from sterna.hw.emit.design import UnitDesign
from sterna.hw.units.mlgru.gateware import MlgruUnit
from sterna.hw.units.mlgru.params import MlgruParams
from sterna.model.quantized import QuantizedModel

__all__ = ["MLGRU_MODULE", "mlgru_design"]

MLGRU_MODULE = "mlgru_unit"


def mlgru_design(model: QuantizedModel, params: MlgruParams) -> UnitDesign:
    """Design the MLGRU unit of a model."""
    unit = MlgruUnit(params, model.sigmoid.tolist())
    spacing = params.beat_spacing
    rate = ("A beat is taken every cycle" if spacing == 1
            else f"At most one beat is taken in every {spacing} cycles")
    return UnitDesign(
        unit, MLGRU_MODULE,
        derived=("beats_per_layer", "words", "candidate_step", "state_step", "latency",
                 "beat_spacing"),
        summary=(f"The MLGRU of {params.layers} layers of {params.channels} channels, "
                 f"{params.lanes} channels per beat, numeric profile {model.profile.name}; the "
                 f"states of {'one sequence' if params.sequences == 1 else params.sequences} "
                 f"{'' if params.sequences == 1 else 'sequences '}live inside."),
        sections=_MLGRU_SECTIONS.format(params=params, rate=rate))


_MLGRU_SECTIONS = """\
## What to send

Per token {params.words} beats: layer by layer, in a layer channel by channel, {params.lanes} at
a time. `f`, `c` and `g` are the pre-activations of the forget gate, the candidate and the output
gate. `start` marks the first beat of a new sequence: every state then counts as zero for this
token. It may come at any time; the rest of a token that it interrupts must not be sent. The first
beat after a reset starts a sequence in any case.

{rate}. The results of a beat, `o` (output) and `h` (new
state), are valid {params.latency} cycles after the cycle that took it, plus the cycles in which
results waited to be taken, for the whole pipeline waits with them.
"""
