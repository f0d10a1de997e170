"""What the folders of the smaller units hold: product, residual, embedding, sampler, weights."""

from __future__ import annotations

from sterna.hw.embedding import Embedding, EmbeddingParams
from sterna.hw.emit_mac import MAC_MODULE, mac_params, packed_weights
from sterna.hw.glu_unit import GluParams, GluUnit
from sterna.hw.residual_add import ResidualAdd, ResidualParams
from sterna.hw.sampler import ArgmaxSampler
from sterna.hw.sampler_params import SamplerParams
from sterna.hw.unit import UnitSizes
from sterna.hw.unit_design import UnitDesign
from sterna.hw.weight_rom import WeightRom
from sterna.model.quantized import QuantizedModel

__all__ = [
    "EMBEDDING_MODULE",
    "GLU_MODULE",
    "RESIDUAL_MODULE",
    "SAMPLER_MODULE",
    "WEIGHTS_MODULE",
    "embedding_design",
    "glu_design",
    "residual_design",
    "sampler_design",
    "weights_design",
]

GLU_MODULE = "glu_unit"
RESIDUAL_MODULE = "residual_add"
EMBEDDING_MODULE = "embedding"
SAMPLER_MODULE = "argmax_sampler"
WEIGHTS_MODULE = "weight_rom"


def glu_design(model: QuantizedModel, sizes: UnitSizes) -> UnitDesign:
    """Design the GLU product of a model; ValueError if a size is out of its range."""
    params = GluParams(model.profile, sizes.lanes, sizes.streams, sizes.trace)
    unit = GluUnit(params.profile, model.sigmoid.tolist(), lanes=params.lanes,
                   streams=params.streams, trace=params.trace)
    trace = ("\nWith them comes `silu`, the activated gate, for verification.\n"
             if params.trace else "")
    return UnitDesign(
        unit, GLU_MODULE, params, derived=("latency",),
        summary=(f"The gated product silu(gate) * up of the channel mixer, {params.lanes} "
                 f"channels per beat, numeric profile {model.profile.name}."),
        sections=_GLU_SECTION.format(params=params) + trace)


def residual_design(model: QuantizedModel, sizes: UnitSizes) -> UnitDesign:
    """Design the residual stream of a model; ValueError if a size is out of its range."""
    params = ResidualParams(model.profile, sizes.rows, model.config.d)
    unit = ResidualAdd(params.profile, rows=params.rows, channels=params.channels)
    return UnitDesign(
        unit, RESIDUAL_MODULE, params,
        derived=("words", "update_bits", "latency", "update_spacing"),
        summary=(f"The residual stream of one sequence: {params.channels} channels kept inside, "
                 f"added to {params.rows} at a time, numeric profile {model.profile.name}."),
        sections=_RESIDUAL_SECTION.format(
            params=params, x=params.profile.x,
            every="cycle" if params.update_spacing == 1 else f"{params.update_spacing} cycles",
            low=-(1 << (params.update_bits - 1)),
            high=(1 << (params.update_bits - 1)) - 1))


def embedding_design(model: QuantizedModel, sizes: UnitSizes) -> UnitDesign:
    """Design the embedding table of a model; ValueError if a size is out of its range."""
    vocab, channels = model.embedding.shape
    # Sizes are refused here: a component that fails to come about is a warning of Amaranth's.
    EmbeddingParams(
        model.profile, sizes.rows, vocab, channels, model.profile.x.bits, sizes.streams)
    unit = Embedding(
        model.profile, model.embedding, rows=sizes.rows, streams=sizes.streams)
    params = unit.params
    return UnitDesign(
        unit, EMBEDDING_MODULE, params,
        derived=("words", "depth", "word_bits", "token_bits", "latency", "request_spacing"),
        summary=(f"The embedding table of {params.vocab} tokens, {params.channels} channels "
                 f"each, {params.rows} channels per word, numeric profile "
                 f"{model.profile.name}."),
        sections=_EMBEDDING_SECTION.format(params=params, highest=params.vocab - 1))


def sampler_design(model: QuantizedModel, sizes: UnitSizes) -> UnitDesign:
    """Design the sampler of a model; ValueError if a size is out of its range."""
    params = SamplerParams(model.profile, sizes.rows, model.config.vocab)
    unit = ArgmaxSampler(params.profile, rows=params.rows, vocab=params.vocab)
    return UnitDesign(
        unit, SAMPLER_MODULE, params,
        derived=("words", "token_bits", "greedy_steps", "sampled_steps"),
        summary=(f"The choice of the next of {params.vocab} tokens from logits of "
                 f"{params.profile.logit.bits} bits, {params.rows} per word: the largest, or one "
                 f"drawn by temperature."),
        sections=_SAMPLER_SECTION.format(params=params))


def weights_design(model: QuantizedModel, sizes: UnitSizes) -> UnitDesign:
    """Design the memory of a model's packed weights, for the array of the same sizes.

    Raises
    ------
    ValueError
        If the array is larger than the largest projection.
    """
    array = mac_params(model, sizes)
    words, index = packed_weights(model, array)
    unit = WeightRom(words, word_bits=array.word_bits)
    params = unit.params
    return UnitDesign(
        unit, WEIGHTS_MODULE, params, derived=("latency",),
        summary=(f"The weights of every projection in a memory of {params.words} words of "
                 f"{params.word_bits} bits, packed for an array of {array.rows} rows by "
                 f"{array.cols} columns."),
        sections=_WEIGHTS_SECTION.format(params=params, array=array, module=MAC_MODULE),
        extra={"array": {"rows": array.rows, "cols": array.cols,
                         "max_columns": array.max_columns, "style": array.style},
               "weights": {"lines": len(words), "projections": index}})


_GLU_SECTION = """\
## What to send

The vectors of gate and up side by side, {params.lanes} channels a beat, in any order: the unit
keeps nothing from one beat to the next. `last` (and `sequence`, if there is one) travels with its
beat and changes nothing. Fill up the last beat of a vector with zeros; their products are zero.

One beat per cycle. The products of a beat are valid {params.latency} cycles after the cycle that
took it, plus the cycles in which products waited to be taken, for the whole pipeline waits with
them.
"""

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

_EMBEDDING_SECTION = """\
## What to send

Tokens, 0 to {highest}. Each is answered with the {params.words} words of its vector,
{params.rows} channels a word, the last one filled up with zeros and marked with `last`.

The first word is valid {params.latency} cycles after the cycle that took the token, then there is
one per cycle. The next token is taken after the last word was, {params.request_spacing} cycles
after the one before if no word has to wait.
"""

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

_WEIGHTS_SECTION = """\
## What to send

Requests: `count` words from word `first` on. `params.json` gives, under `weights`, `first_line` and
`lines` of every projection. A word is the low {params.word_bits} bits of `beats__payload` of the
array `{module}` with rows {array.rows} and cols {array.cols}; only the activations are to be added.

The first word is valid {params.latency} cycles after the cycle that took its request, then there is
one per cycle. A further request may be taken meanwhile; its words follow without a gap.
"""
