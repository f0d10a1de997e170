"""Words for the ports of a core: from a request to what is sent, and a test for its folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sterna.hw.core.plan.params import CoreParams
from sterna.hw.core.plan.request import Request
from sterna.hw.core.timing.cycles import CycleModel
from sterna.hw.core.token_control import ControlSignature
from sterna.hw.core.verilog import CORE_WEIGHTS_FILE
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.emit.selftest.vectors import FileWords, VectorPhase, Vectors
from sterna.hw.testbench.payloads import Fields, UnitPorts, pack_words
from sterna.hw.testbench.stimulus import last_flags
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerModel

__all__ = ["control_levels", "core_vectors", "patience", "prompt_words", "weight_runs"]

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
    """Levels of the control ports of a sequence for a request."""
    values = {
        "limit": request.tokens, "stop": int(request.stop_token is not None),
        "stop_token": request.stop_token or 0, "beta": request.beta, "seed": request.seed}
    return {f"control__{sequence}__{name}": values[name]
            for name in ControlSignature(params).members}


def weight_runs(
    program: Sequence[Mapping[str, Any]], heads: Iterable[bool],
) -> list[tuple[int, int]]:
    """First word and number of words of every run of weights that a core asks for.

    Parameters
    ----------
    program
        Stages of a token, as the manifest states them.
    heads
        For each token that runs, whether the head runs too.
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
