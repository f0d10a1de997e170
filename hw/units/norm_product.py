"""The unit ``norm``: its sizes, what its folder says, its stimulus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from sterna.hw.emit.folder import EmittedUnit, UnitDesign
from sterna.hw.emit.payloads import UnitPorts
from sterna.hw.testbench.scoreboard import ScoredPhase
from sterna.hw.testbench.stimulus import Activations, Oracles, PhaseBuilder, Stimulus, last_flags
from sterna.hw.units.norm_params import NormParams
from sterna.hw.units.norm_quant import NormQuant
from sterna.hw.units.spec import UnitSpec, usual_phases
from sterna.model.config import ModelConfig
from sterna.model.profile import NumericProfile
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import norm_quant

__all__ = ["NORM"]


def norm_design(model: QuantizedModel, params: NormParams) -> UnitDesign:
    unit = NormQuant(params)
    sections = [_SECTION.format(params=params)]
    if params.sequences > 1:
        sections.append(_SEQUENCES_SECTION)
    if params.trace:
        sections.append(_TRACE_SECTION)
    return UnitDesign(
        unit, "norm_quant",
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


_RESULTS = ("q", "v", "m", "r", "s", "n")


def norm_inputs(config: ModelConfig) -> dict[str, str]:
    """Return the tap of the vector that each norm takes, in the order of computation.

    >>> list(norm_inputs(ModelConfig(d=8, layers=1, dff=12)).items())[:2]
    [('layer0.mlgru.norm', 'embedding.x'), ('layer0.mlgru.out_norm', 'layer0.mlgru.o')]
    """
    inputs: dict[str, str] = {}
    x = "embedding.x"
    for layer in range(config.layers):
        mlgru, glu = f"layer{layer}.mlgru", f"layer{layer}.glu"
        inputs |= {
            f"{mlgru}.norm": x, f"{mlgru}.out_norm": f"{mlgru}.o",
            f"{glu}.norm": f"{mlgru}.x", f"{glu}.down_norm": f"{glu}.p"}
        x = f"{glu}.x"
    return {**inputs, "head.norm": x}


def norm_tensors(model: QuantizedModel) -> list[str]:
    inputs = norm_inputs(model.config)
    return [*inputs.values(), *(f"{norm}.{part}" for norm in inputs for part in _RESULTS)]


def norm_phases(
    model: QuantizedModel, emitted: EmittedUnit, acts: Activations,
) -> list[ScoredPhase]:
    """Make the phases; with two sequences, the second sequence sees the text backwards."""
    params: NormParams = emitted.params
    ports = UnitPorts.of(emitted.manifest)

    def builder(tokens: Iterable[int]) -> PhaseBuilder:
        made = PhaseBuilder(ports)
        tokens = list(tokens)
        for sequence in range(params.sequences):
            for token in tokens if sequence == 0 else reversed(tokens):
                for norm, tap in norm_inputs(model.config).items():
                    results = {part: (f"{norm}.{part}", acts.reference[f"{norm}.{part}"][token],
                                      acts.onnx[f"{norm}.{part}"][token]) for part in _RESULTS}
                    _add(made, params, sequence, token, acts.reference[tap][token], results)
        return made

    # One whole vector, and half of the next.
    words = params.words(model.config.d)
    some = {f"words__{sequence}": words + max(1, words // 2)
            for sequence in range(params.sequences)}
    return usual_phases(
        acts, builder, some, _extremes(model.profile, params, ports), cut_after=3)


def _add(
    builder: PhaseBuilder, params: NormParams, sequence: int, token: int, vector: np.ndarray,
    results: Mapping[str, Oracles],
) -> None:
    """Send a vector and expect its results; a word of acts has zeros beyond its end."""
    only = f"[{sequence}]" if params.sequences > 1 else ""
    size = vector.size
    builder.send(f"words__{sequence}", {"y": vector, "last": last_flags(params.words(size))})
    chunks = params.chunks(size)
    tensor, reference, onnx = results["q"]
    fill = (0, chunks * params.lanes - size)
    flags = last_flags(chunks)
    builder.expect(token, f"acts{only}", {
        "q": (tensor, np.pad(reference, fill), None if onnx is None else np.pad(onnx, fill)),
        "last": (f"{tensor}.last", flags, None)})
    parts = _RESULTS[1:] if params.trace else ("v",)
    builder.expect(token, f"scales{only}", {part: results[part] for part in parts})


def _extremes(profile: NumericProfile, params: NormParams, ports: UnitPorts) -> PhaseBuilder:
    """Every corner of the range, from one channel to the longest vector."""
    low, high = -(1 << (params.y_bits - 1)), (1 << (params.y_bits - 1)) - 1
    n = params.channels
    ramp = np.arange(n)
    alone = np.zeros(n, dtype=np.int64)
    alone[-1] = low
    builder = PhaseBuilder(ports)
    for sequence in range(params.sequences):
        for name, vector in {
            "zeros": np.zeros(n), "lowest": np.full(n, low), "highest": np.full(n, high),
            "ones": np.ones(n), "minus ones": np.full(n, -1), "alone": alone,
            "alternating": np.where(ramp % 2, low, high),
            "ramp": low + ramp * ((high - low) // n),
            "halves": ramp % 256 - 128,
            "one channel": np.array([high]), "one zero": np.zeros(1),
            "a word and one": np.full(min(n, params.rows + 1), low),
        }.items():
            results = norm_quant(vector.astype(np.int64), profile)
            _add(builder, params, sequence, 0, vector.astype(np.int64), {
                part: (f"extreme({name}).{part}", results[part], None) for part in _RESULTS})
    return builder


def norm_params(
    model: QuantizedModel, *, rows: int = 8, lanes: int = 8, sequences: int = 1,
    trace: bool = False,
) -> NormParams:
    return NormParams(
        model.profile, rows, lanes, max(model.config.d, model.config.dff), sequences, trace)


NORM = UnitSpec(
    "norm", "normalisation and quantisation of a vector to 8-bit activations",
    "norm_quant", norm_params, norm_design, Stimulus(norm_tensors, norm_phases), tokens=8)
