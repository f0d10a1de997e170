"""What the folder of the sampler holds."""

from __future__ import annotations

from sterna.hw.emit.design import UnitDesign
from sterna.hw.units.sampler.gateware import ArgmaxSampler
from sterna.hw.units.sampler.params import SamplerParams
from sterna.model.quantized import QuantizedModel

__all__ = ["SAMPLER_MODULE", "sampler_design"]


SAMPLER_MODULE = "argmax_sampler"


def sampler_design(model: QuantizedModel, params: SamplerParams) -> UnitDesign:
    """Design the sampler of a model."""
    unit = ArgmaxSampler(params)
    return UnitDesign(
        unit, SAMPLER_MODULE,
        derived=("words", "token_bits", "greedy_steps", "sampled_steps"),
        summary=(f"The choice of the next of {params.vocab} tokens from logits of "
                 f"{params.profile.logit.bits} bits, {params.rows} per word: the largest, or one "
                 f"drawn by temperature."),
        sections=_SAMPLER_SECTION.format(params=params))


_SAMPLER_SECTION = """\
## What to send

The logits of a vector in {params.words} words of {params.rows}, one per cycle; lanes past
logit {params.vocab} in the last word are ignored. Then none until the token was taken.

`beta` is read when the first word of a vector is taken. 0 is greedy: the largest logit, the
first one on ties. Otherwise `beta` is log2(e) / temperature with 10 fraction bits, rounded, and the
token is drawn with a number of an xorshift32 generator. `reseed` starts the generator from `seed`
(0 counts as 1), from the next cycle on; a number is drawn in the cycle that takes the last word.

The token is valid {params.greedy_steps} cycles (greedy) or {params.sampled_steps} cycles (drawn)
after the cycle that took the last word, whatever the logits are.
"""
