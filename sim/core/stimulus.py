"""Convert requests, phase by phase, to input words of a core and expected outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sterna.export.runtime.runtime import OnnxModel
from sterna.hw.core.compute.request import Request
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.core.product.core_product import patience, prompt_words
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.emit.payloads import UnitPorts
from sterna.hw.testbench.job import Job, Pause, Phase
from sterna.hw.testbench.stimulus import Activations
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerModel
from sterna.sim.core.reference import (
    Answer,
    Oracle,
    Stepper,
    record_activations,
    tensor_names,
)
from sterna.sim.core.trace import monitored_lanes

__all__ = ["CorePhase", "CoreStimulus", "SequenceAnswer"]

_PER_GROUP = 8
"""Cycles between the words of two groups of rows, at most."""


@dataclass(frozen=True, slots=True)
class CorePhase:
    """Requests with their sequences, in the order of sending their prompts, and the actions of the
    bench."""

    name: str  # what it tests, for messages
    requests: tuple[tuple[int, Request], ...]
    # Whether the core is reset first and settled with a token, so that its cycles are predictable.
    # The requests must then start sequences.
    reset: bool = False
    random_pauses: bool = False
    # pauses of single ports, overriding ``random_pauses``
    pauses: Mapping[str, Pause] = field(default_factory=dict)
    # If not None: nothing is compared, and the phase ends this many cycles after the last prompt
    # token was taken. The next phase must begin with a reset.
    cut_after: int | None = None

    @property
    def is_timed(self) -> bool:
        """Whether the cycle model predicts its cycles."""
        return self.reset and not self.random_pauses and not self.pauses


@dataclass(frozen=True, slots=True)
class SequenceAnswer:
    """Expected outputs of a sequence for a request, by both oracles."""

    sequence: int
    answer: Answer  # of the reference
    # of onnxruntime; None if the core has a trace of its tensors, which include the logits
    onnx: Answer | None
    # of all tokens since the sequence began, by both oracles; None if the core has no trace
    tensors: Activations | None
    first_token: int  # the request's first token among these


class CoreStimulus:
    """Makes phases of words from phases of requests."""

    def __init__(self, model: QuantizedModel, emitted: EmittedUnit) -> None:
        self._model = model
        self._params: CoreParams = emitted.params
        self._ports = UnitPorts.of(emitted.manifest)

    def answers(self, phases: Sequence[CorePhase]) -> list[list[SequenceAnswer]]:
        """Answer every request of every phase, except phases that are cut."""
        params = self._params
        kinds: list[Stepper] = [IntegerModel(self._model)] if params.trace else [
            IntegerModel(self._model), OnnxModel(self._model)]
        oracles = [[Oracle(kind, self._model.profile.logit.frac) for kind in kinds]
                   for _ in range(params.sequences)]
        runs: list[list[int]] = [[] for _ in oracles]
        found: list[list[SequenceAnswer]] = []
        names = tensor_names(self._model) if params.trace else []
        for phase in phases:
            self._check(phase)
            found.append([])
            for sequence, request in phase.requests if phase.cut_after is None else ():
                answer, *onnx = [oracle.answer(request) for oracle in oracles[sequence]]
                before = [] if request.start else runs[sequence]
                runs[sequence] = before + answer.run
                found[-1].append(SequenceAnswer(
                    sequence, answer, onnx[0] if onnx else None,
                    record_activations(self._model, [np.array(runs[sequence])], names)[0]
                    if params.trace else None, len(before)))
        return found

    def _check(self, phase: CorePhase) -> None:
        for sequence, request in phase.requests:
            if not 0 <= sequence < self._params.sequences:
                raise ValueError(f"the core has the sequences 0 to {self._params.sequences - 1}, "
                                 f"phase {phase.name!r} asks sequence {sequence}")
            request.check_vocab(self._model.vocab)
            if request.beta and self._params.compact:
                raise ValueError("a compact core draws no tokens: take temperature 0, "
                                 f"not {request.temperature}")
            if not request.predictions[-1]:
                raise ValueError(
                    f"phase {phase.name!r} has a request without a prediction after its last "
                    f"token: nothing would tell when that is done")

    def job(
        self, phases: Sequence[CorePhase], answers: Sequence[Sequence[SequenceAnswer]], seed: int,
    ) -> tuple[Job, list[int]]:
        """The words of every phase, and the index of each phase in the job: a settling phase
        precedes each phase with a reset."""
        params = self._params
        made: list[Phase] = []
        places: list[int] = []
        settle = ((0, Request((0,), tokens=1)),)

        def levels(random_pauses: bool) -> dict[str, int]:
            """Of a memory behind the core."""
            return {"pauses": int(random_pauses)} if "pauses" in self._ports.levels else {}

        for phase, expected in zip(phases, answers, strict=True):
            if phase.reset:
                made.append(Phase(f"{phase.name}: settle", self._prompts(settle),
                                  self._counts(1, 1), reset=True, random_pauses=False,
                                  levels=levels(False), drain=self._rest()))
            places.append(len(made))
            counts = {} if phase.cut_after is not None else self._counts(
                sum(len(each.answer.generated) for each in expected),
                sum(len(each.answer.logits) for each in expected))
            made.append(Phase(
                phase.name, self._prompts(phase.requests), counts,
                random_pauses=phase.random_pauses, pauses=dict(phase.pauses),
                levels=levels(phase.random_pauses), cut_after=phase.cut_after or 0))
        return Job(self._ports.inputs, self._ports.outputs, seed, made,
                   levels=self._ports.levels, patience=patience(params),
                   monitored=monitored_lanes(params)), places

    def _rest(self) -> int:
        """Cycles after which a core has rested: behind a port, has read as far ahead as it can."""
        params, usual = self._params, Phase("", {}, {}).drain
        if not params.port_bits:
            return usual
        words = params.weight_parts + params.row_beats * params.header_parts
        return usual + params.ring * (words + _PER_GROUP)

    def _prompts(self, requests: Sequence[tuple[int, Request]]) -> dict[str, list[int]]:
        return {"prompts": prompt_words(self._ports.fields["prompts"], requests)}

    def _counts(self, tokens: int, predictions: int) -> dict[str, int]:
        words = self._params.logit_beats(self._model.vocab)
        return {"tokens": tokens, "logits": predictions * words}
