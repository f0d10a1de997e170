"""The unit ``core``: sizes, texts, memory images and test of its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from sterna.hw.core.compute.core import Core
from sterna.hw.core.compute.request import Request
from sterna.hw.core.compute.trace import trace_extra, trace_section
from sterna.hw.core.cycles.model import cycles_per_token
from sterna.hw.core.image.core_image import CoreImage, build_image
from sterna.hw.core.image.linear import IMAGE_FILE, image_text
from sterna.hw.core.image.program import place_stages
from sterna.hw.core.image.reader import port_section
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.core.params.limits import Limits
from sterna.hw.core.product.registers import Bus, StreamRegisters
from sterna.hw.core.product.registers_product import register_design
from sterna.hw.emit.folder import EmittedUnit, UnitDesign
from sterna.hw.emit.payloads import Fields, UnitPorts, pack_words
from sterna.hw.emit.selftest.folder_test import VectorPhase, Vectors
from sterna.hw.testbench.stimulus import last_flags
from sterna.hw.units.spec import UnitSpec
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerModel

__all__ = ["CORE", "CORE_MODULE", "core_design", "core_params", "patience", "prompt_words"]

CORE_MODULE = "matmul_free_core"


def core_params(model: QuantizedModel, **sizes: Any) -> CoreParams:
    """The geometry of a core for one model, with sizes of :class:`CoreParams`."""
    return CoreParams(Limits.of(model), **sizes)


def core_design(model: QuantizedModel, params: CoreParams) -> UnitDesign:
    """Design a core and the image of a model for it.

    With ``port_bits`` the folder has ``image.hex``: the words of the memory behind the port, one
    per line. Otherwise the model is in ROMs in the Verilog.
    """
    image = build_image(model, params)
    return UnitDesign(
        Core(image), CORE_MODULE,
        derived=("clusters", "post_lanes", "cell_lanes", "quant_lanes", "phases", "token_bits"),
        summary=(f"A MatMul-free language model of {model.config.layers} layers, d "
                 f"{model.config.d}, dff {model.config.dff}, {model.config.vocab} tokens, in "
                 f"numeric profile {model.profile.name}: prompt tokens in, generated tokens "
                 f"out. {params.rows} rows of {params.cols} columns, "
                 f"{params.sequences} sequence{'s' if params.sequences > 1 else ''}."),
        sections=_sections(image),
        extra=_extra(image),
        extra_files={IMAGE_FILE: image_text(image)} if params.port_bits else {})


def _extra(image: CoreImage) -> dict[str, Any]:
    params = image.params
    extra: dict[str, Any] = {
        "program": [
            {"kind": stage.kind.name, "matrices": stage.plan.matrices, "rows": stage.rows,
             "groups": stage.groups, "chunks": stage.chunks, "tiles": stage.tiles,
             "weight": stage.weight, "header": stage.header, "state": stage.state,
             "words": stage.words}
            for stage in place_stages(image.plan, params)],
    }
    if not params.port_bits:    # otherwise it depends on the memory
        extra["cycles_per_token"] = float(cycles_per_token(params, image.plan))
    return extra | trace_extra(params)


def _sections(image: CoreImage) -> str:
    params, vocab = image.params, len(image.embedding)
    sections = [_USE, _LOGITS.format(
        words=params.logit_beats(vocab), lanes=params.post_lanes, vocab=vocab)]
    if params.port_bits:
        sections.append(port_section(params))
    if params.trace:
        sections.append(trace_section(params))
    return "\n".join(sections)


_USE = """\
## How to use it

Give `prompts` the tokens of a prompt, each with the number of its `sequence`: `start` with the
first token (the sequence then forgets everything before), `predict` with the last one. A token is
taken as soon as the one before it of the same sequence is done, and keeps those behind it waiting
until then. After a token with `predict` the core computes logits; if its `limit` is not 0 it
chooses a token, gives it on `tokens`, runs it, and so on until it has given `limit` tokens or, if
`stop` is high, `stop_token`; `last` comes with the last one. The last token given is not run: to go
on with the sequence, send it first, without `start`.

`beta` is log2(e) / T * 1024, rounded, for temperature T; 0 chooses the largest logit. `seed` (0
counts as 1) is loaded with a token that has `start`.

Sequences run side by side, a token of each at a time; those that have none stand still.
"""

_LOGITS = """\
## Logits

After each token with a prediction come {words} words of {lanes} logits, lowest token first; those
from token {vocab} on mean nothing. The core waits until they are taken: tie `logits__ready` to 1 if
you do not look at them.
"""

_PROMPT, _TOKENS = 2, 3
"""Prompt tokens and requested tokens of the folder's test."""


def prompt_words(fields: Fields, requests: Sequence[tuple[int, Request]]) -> list[int]:
    """Words of ``prompts`` for requests and their sequences, one per prompt token."""
    words = [
        {"sequence": sequence, "token": token, "start": request.start and not position,
         "predict": request.predicts_after(position), "limit": request.tokens,
         "stop": request.stop_token is not None, "stop_token": request.stop_token or 0,
         "beta": request.beta, "seed": request.seed}
        for sequence, request in requests for position, token in enumerate(request.prompt)]
    return pack_words(fields, {
        name: np.array([int(word[name]) for word in words], dtype=np.int64) for name in fields})


def patience(params: CoreParams) -> int:
    """Cycles without a transfer at any port that count as a hang; a token takes many."""
    return 20_000 + 40 * params.sequences * params.most_weights


def core_vectors(model: QuantizedModel, emitted: EmittedUnit) -> Vectors | None:
    """A short prompt for each sequence, the tokens that the reference generates greedily, and
    their logits. None with a port: the folder lacks the memory behind it."""
    params: CoreParams = emitted.params
    if params.port_bits:
        return None
    fields = UnitPorts.of(emitted.manifest).fields
    outputs: dict[str, list[int]] = {}
    masks: dict[str, list[int]] = {}
    vocab = model.vocab
    requests = []
    for sequence in range(params.sequences):
        first = vocab // 3 + sequence
        request = Request(
            tuple((first + 7 * at) % vocab for at in range(_PROMPT)), tokens=_TOKENS)
        requests.append((sequence, request))
        tokens, logits = _greedy(model, request)
        outputs[f"tokens[{sequence}]"] = pack_words(fields["tokens"], {
            "sequence": np.full(_TOKENS, sequence), "token": np.array(tokens),
            "last": last_flags(_TOKENS)})
        stream = f"logits[{sequence}]"
        outputs[stream], masks[stream] = _words_of_logits(
            fields["logits"], sequence, params.logit_beats(vocab), logits)
    return Vectors([VectorPhase(
        "prompt and text", {"prompts": prompt_words(fields["prompts"], requests)}, outputs, masks,
    )], patience(params))


def _greedy(model: QuantizedModel, request: Request) -> tuple[list[int], np.ndarray]:
    """Tokens that the reference generates, and their logits ``[tokens, vocab]``."""
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
    return found, np.stack(logits)


def _words_of_logits(
    fields: Fields, sequence: int, count: int, logits: np.ndarray,
) -> tuple[list[int], list[int]]:
    """Words of ``logits [tokens, vocab]``, and masks of their valid bits."""
    lanes, ones = fields["logits"].elements, (1 << fields["sequence"].element_bits) - 1
    tokens, vocab = logits.shape

    def pack(sequence: int, last: np.ndarray, values: np.ndarray) -> list[int]:
        return pack_words(fields, {
            "sequence": np.full(tokens * count, sequence), "last": np.tile(last, tokens),
            "logits": np.pad(values, ((0, 0), (0, count * lanes - vocab))).reshape(-1, lanes)})

    return (pack(sequence, last_flags(count), logits),
            pack(ones, np.ones(count), np.full_like(logits, -1)))


_PROMPT_MEANINGS: Mapping[str, str] = MappingProxyType({
    "sequence": "whose token it is", "token": "the token", "start": "whether it begins a text",
    "predict": "whether to generate after it",
    "stop": "whether `PROMPT_STOP_TOKEN` ends the text early", "stop_token": "that token",
    "limit": "tokens to generate; 0 for the logits alone",
    "beta": "log2(e) / T * 1024, rounded, for temperature T; 0 for the most likely token",
    "seed": "of the random numbers, with `PROMPT_START`; 0 counts as 1"})


def core_register_design(
    model: QuantizedModel, params: CoreParams, bus: Bus, name: str,
) -> UnitDesign:
    """Design a core behind registers; ``name`` is the module's."""
    design = core_design(model, params)
    core = design.component
    prompts = StreamRegisters(
        "PROMPT", core.prompts, "a prompt token", _PROMPT_MEANINGS,
        {"sequence": params.sequences, "token": params.vocab})
    return register_design(
        design, bus, name, prompts, [
            StreamRegisters("TOKEN", core.tokens, "a generated token"),
            StreamRegisters("LOGITS", core.logits, "a word of logits", is_optional=True)],
        _CORE_USE)


_CORE_USE = """\
- **Send a prompt** token by token, once `CAN_SEND` is 1: write the registers `PROMPT_...` that
  differ from the token before, then `PROMPT_SEND`. `PROMPT_START` goes with the first token of a
  text, `PROMPT_PREDICT` with the last one.
- **Take a token** once `TOKEN` is 1: read `TOKEN_SEQUENCE`, `TOKEN_TOKEN` and `TOKEN_LAST`, which
  is 1 with the last one of a text, then write `TOKEN_TAKE`. The core waits for that, and with bit 1
  of `CONTROL` for `LOGITS_TAKE`.
- **Refused** is a prompt token if a number in its registers is out of range or another one still
  waits, and a `TAKE` while nothing waits: nothing is sent or taken.
- While bit 0 of `CONTROL` is 1 the core is in reset. Afterwards every text begins anew.
"""

CORE = UnitSpec(
    "core", "the whole model", CORE_MODULE, core_params, core_design, None, tokens=64,
    vectors=core_vectors, registers=core_register_design,
    own_sizes=CoreParams.defaults())
