"""The unit ``core``: sizes, texts and memory images of its folder, and the test that it carries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from sterna.hw.core.request import Request
from sterna.hw.emit.documents import field_bits
from sterna.hw.emit.folder import EmittedUnit, UnitDesign
from sterna.hw.emit.payloads import Fields, UnitPorts, pack_words
from sterna.hw.emit.selftest.folder_test import FileWords, VectorPhase, Vectors
from sterna.hw.oldcore.control import ControlSignature
from sterna.hw.oldcore.core import MatMulFreeCore
from sterna.hw.oldcore.plan.core_params import COMPACT, CoreParams, program
from sterna.hw.oldcore.plan.image import CoreImage, build_image
from sterna.hw.oldcore.timing.cycles import CycleModel
from sterna.hw.oldcore.trace import Tap, trace_layout
from sterna.hw.testbench.stimulus import last_flags
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.hw.units.spec import UnitSpec
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerModel

__all__ = [
    "CORE", "CORE_MODULE", "CORE_WEIGHTS_FILE", "control_levels", "core_design", "core_params",
    "patience", "prompt_words", "weight_runs"]

CORE_MODULE = "matmul_free_core"
CORE_WEIGHTS_FILE = "weights.hex"


def core_design(model: QuantizedModel, params: CoreParams) -> UnitDesign:
    """Design a core that runs a model.

    With ``external_weights`` the folder has ``weights.hex``: the weight words that the port
    is asked for, one per line. Otherwise they are in the Verilog.
    """
    image = build_image(model, params)
    return UnitDesign(
        MatMulFreeCore(image), CORE_MODULE,
        derived=("stages", "mac_cycles", "tiles", "weight_bits", "token_bits", "vocab_words"),
        summary=(f"A MatMul-free language model of {model.config.layers} layers, d "
                 f"{model.config.d}, dff {model.config.dff}, {model.config.vocab} tokens, in "
                 f"numeric profile {model.profile.name}: prompt tokens in, generated tokens "
                 f"out. {params.rows} rows of {params.cols} columns, "
                 f"{params.sequences} sequence{'s' if params.sequences > 1 else ''}."),
        sections=_sections(image),
        extra=_extra(image),
        extra_files=_images(image) if params.external_weights else {})


def _extra(image: CoreImage) -> dict[str, Any]:
    params = image.params
    cycles = CycleModel(params)
    extra: dict[str, Any] = {
        "memory_bits": {
            name: bits for name, bits in image.memory_bits.items()
            if name != "weights" or not params.external_weights},
        "cycles_per_token": {
            "greedy": cycles.cycles_per_token(), "sampled": cycles.cycles_per_token(sampled=True)},
        "program": [
            {**asdict(stage), "kind": stage.kind.name, "beats": stage.beats}
            for stage in program(params)],
    }
    if params.trace:
        layout = trace_layout(image)
        extra["trace"] = {
            tap.name.lower(): {
                "tap": int(tap), "low": layout[tap.name.lower()].offset,
                "width": layout[tap.name.lower()].width,
                "fields": [asdict(bits) for bits in field_bits(
                    _lane(layout[tap.name.lower()].shape))]}
            for tap in Tap}
    return extra


def _lane(shape: Any) -> Any:
    """The layout of a lane; of one of them where there is one for each sequence."""
    return getattr(shape, "elem_shape", shape)


def _images(image: CoreImage) -> dict[str, str]:
    digits = -(-image.params.weight_bits // 4)
    return {CORE_WEIGHTS_FILE: "".join(f"{word:0{digits}x}\n" for word in image.weights)}


def _sections(image: CoreImage) -> str:
    params = image.params
    sections = [_USE.format(
        sequences="" if params.sequences == 1 else
        " Each sequence has ports of its own; they run independently of each other.")]
    if params.logits:
        sections.append(_LOGITS.format(
            words=params.vocab_words, rows=params.rows, vocab=params.config.vocab))
    if params.external_weights:
        sections.append(_WEIGHTS.format(
            file=CORE_WEIGHTS_FILE, bits=params.weight_bits, cols=params.cols,
            words=params.mac_cycles))
    if params.trace:
        sections.append(_TRACE.format(width=trace_layout(image).size))
    return "\n".join(sections)


_USE = """\
## How to use it

Give `prompts` the tokens of a prompt: `start` with the first token of a sequence (the model then
forgets everything before), `predict` with the last one. While `go` is high a token is taken as
soon as the one before is done. After a token with `predict` the core computes logits; if
`control__*__limit` is not 0 it chooses a token, gives it on `tokens`, runs it, and so on until it
has given `limit` tokens or `control__*__stop_token` (if `control__*__stop` is high); `last` comes
with the last one. The last token given is not run: to go on with the sequence, send it first,
without `start`.{sequences}

`control__*__beta` is log2(e) / T * 1024, rounded, for temperature T; 0 chooses the largest logit.
`control__*__seed` (0 counts as 1) is loaded with a token that has `start`. Change `control` of a
sequence before the first token of a prompt only, while its `prompts__*__ready` is high.

`busy` is high while a token is in progress; `cycles` counts those cycles. Lowering `go` stops the
core after the token in progress only if that is a prompt's: generation runs to its end.
"""

_LOGITS = """\
## Logits

After each token that has a prediction, {words} words of {rows} logits, lowest token first; those
from token {vocab} on mean nothing. The core waits until they are taken: tie `logits__*__ready` to 1
if you do not look at them.
"""

_WEIGHTS = """\
## Weights

Before each stage the core asks on `weight_requests` for `count` words from word `first` on, and
takes them from `weights` in that order, one per cycle at most. It may ask for the next run while
the words of this one are still coming. `{file}` (for `$readmemh`) holds all {words} words of {bits}
bits: trit of row r and column c at bit 2*({cols}*r + c), 0, 1 or 3 (for -1). Reset the source with
the core: what it still sends for an older request would be taken for the new one.
"""

_TRACE = """\
## Trace

`taps` ({width} bits) shows every intermediate vector in the cycle in which it moves; it has no
`ready`. `params.json` gives, under `trace`, tap number, place and fields of every lane.
"""


_PROMPT, _TOKENS = 2, 3
"""Tokens of the prompt of the folder's test, and tokens that it asks for."""


def prompt_words(fields: Fields, request: Request) -> list[int]:
    """Words of ``prompts`` for a request, one for each token of its prompt."""
    start = np.zeros(len(request.prompt), dtype=np.int64)
    start[0] = request.start
    return pack_words(fields, {
        "token": np.array(request.prompt), "start": start,
        "predict": np.array(request.predictions, dtype=np.int64)})


def control_levels(params: CoreParams, sequence: int, request: Request) -> dict[str, int]:
    values = {
        "limit": request.tokens, "stop": int(request.stop_token is not None),
        "stop_token": request.stop_token or 0, "beta": request.beta, "seed": request.seed}
    return {f"control__{sequence}__{name}": values[name]
            for name in ControlSignature(params).members}


def weight_runs(
    program: Sequence[Mapping[str, Any]], heads: Iterable[bool],
) -> list[tuple[int, int]]:
    """First word and number of words of every run of weights that a core asks for.

    ``heads`` says of each token whether the head runs too.
    """
    return [(stage["first_weight"], stage["beats"])
            for head in heads for stage in program[:None if head else -1]]


def patience(params: CoreParams) -> int:
    """Cycles without a transfer at any port after which a core hangs, a token taking many."""
    return 3000 + 4 * int(CycleModel(params).cycles_per_token(sampled=True))


def core_vectors(model: QuantizedModel, emitted: EmittedUnit) -> Vectors:
    """A short prompt for each sequence and the tokens that the reference goes on with, greedily.

    With a port for logits, those of every prediction are expected as well. With one for weights,
    only the first sequence gets a prompt: the order of the requests of two depends on pauses.
    """
    params: CoreParams = emitted.params
    ports = UnitPorts.of(emitted.manifest)
    inputs: dict[str, list[int | FileWords]] = {}
    outputs: dict[str, list[int]] = {}
    masks: dict[str, list[int]] = {}
    levels = {"go": 1}
    vocab = params.config.vocab
    for sequence in range(1 if params.external_weights else params.sequences):
        first = vocab // 3 + sequence
        request = Request(
            tuple((first + 7 * at) % vocab for at in range(_PROMPT)), tokens=_TOKENS)
        tokens, logits = _greedy(model, request)
        inputs[f"prompts__{sequence}"] = [
            *prompt_words(ports.fields[f"prompts__{sequence}"], request)]
        levels |= control_levels(params, sequence, request)
        outputs[f"tokens__{sequence}"] = pack_words(ports.fields[f"tokens__{sequence}"], {
            "token": np.array(tokens), "last": last_flags(_TOKENS)})
        if params.logits:
            stream = f"logits__{sequence}"
            outputs[stream], masks[stream] = _logit_words(ports.fields[stream], logits)
    if params.external_weights:
        runs = weight_runs(
            emitted.manifest["program"], [False] * (_PROMPT - 1) + [True] * _TOKENS)
        inputs["weights"] = [FileWords(CORE_WEIGHTS_FILE, *run) for run in runs]
        outputs["weight_requests"] = pack_words(ports.fields["weight_requests"], {
            "first": np.array([first for first, _ in runs]),
            "count": np.array([count for _, count in runs])})
    return Vectors(
        [VectorPhase("prompt and text", inputs, outputs, masks, levels=levels)],
        patience(params))


def _greedy(model: QuantizedModel, request: Request) -> tuple[list[int], list[np.ndarray]]:
    """Tokens that the reference goes on with, and the logits ``[vocab]`` of each."""
    reference = IntegerModel(model)
    state = reference.start(1)
    left = list(request.prompt)
    found: list[int] = []
    logits: list[np.ndarray] = []
    while len(found) < request.tokens:
        out, state = reference.step(np.array([left.pop(0)]), state)
        if not left:
            logits.append(np.asarray(out[0], dtype=np.int64))
            found.append(int(logits[-1].argmax()))
            left.append(found[-1])
    return found, logits


def _logit_words(fields: Fields, logits: list[np.ndarray]) -> tuple[list[int], list[int]]:
    """Words of ``logits`` for vectors ``[vocab]``, and their bits that mean something."""
    words: list[list[int]] = []
    for full in (False, True):
        words.append([])
        for vector in logits:
            rows = (fields["logits"].high + 1 - fields["logits"].low
                    ) // fields["logits"].element_bits
            count = -(-len(vector) // rows)
            values = np.zeros(count * rows, dtype=np.int64)
            values[:len(vector)] = -1 if full else vector
            words[-1] += pack_words(fields, {
                "logits": values.reshape(count, rows),
                "last": np.ones(count, dtype=np.int64) if full else last_flags(count)})
    return words[0], words[1]


def core_params(
    model: QuantizedModel, *, rows: int = 8, cols: int = 128, sequences: int = 1,
    quant_lanes: int = 0, logits: bool = True, trace: bool = False,
    external_weights: bool = False, style: ArrayStyle = ArrayStyle.GENERIC,
    sampling: bool = True, routing_registers: bool = False,
    compact: bool = False,
) -> CoreParams:
    """Return the geometry of a core for a model; :class:`CoreParams` says what each size is.

    ``compact`` stands for the four of :data:`~sterna.hw.oldcore.plan.core_params.COMPACT`.
    """
    params = CoreParams(
        model.config, model.profile, rows, cols, sequences=sequences, quant_lanes=quant_lanes,
        logits=logits, trace=trace, external_weights=external_weights, style=style,
        sampling=sampling, routing_registers=routing_registers)
    return replace(params, **COMPACT) if compact else params


CORE = UnitSpec(
    "core", "the whole model", CORE_MODULE, core_params, core_design, None, tokens=64,
    vectors=core_vectors)
