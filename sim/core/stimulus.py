"""From requests, phase by phase, to the words that an emitted core gets, and what must come out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from amaranth.lib.data import ArrayLayout, StructLayout

from sterna.hw.core.request import Request
from sterna.hw.emit.documents import field_bits
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.emit.payloads import Fields, UnitPorts
from sterna.hw.oldcore.core_product import (
    CORE_WEIGHTS_FILE,
    control_levels,
    patience,
    prompt_words,
    weight_runs,
)
from sterna.hw.oldcore.plan.core_params import CoreParams
from sterna.hw.oldcore.plan.request import check_requests
from sterna.hw.testbench.job import Job, MonitoredBits, Pause, Phase
from sterna.hw.testbench.stimulus import Activations
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.taps import TapRecorder
from sterna.sim.core.reference import Answer, Oracle, record_activations

__all__ = ["CorePhase", "CoreStimulus", "Lane", "SequenceAnswer", "lanes_of"]


@dataclass(frozen=True, slots=True)
class CorePhase:
    """A request, or none, for each sequence, and what the bench does to the core meanwhile."""

    name: str  # what it tests, for messages
    requests: tuple[Request | None, ...]  # a request for each sequence; None leaves it alone
    reset: bool = False  # whether the core is reset first; the requests must then start sequences
    random_pauses: bool = False
    # pauses of single ports, in place of what ``random_pauses`` says
    pauses: dict[str, Pause] = field(default_factory=dict)
    # If not None: nothing is compared, and the phase ends so many cycles after the last prompt
    # token was taken. The next phase must begin with a reset.
    cut_after: int | None = None


@dataclass(frozen=True, slots=True)
class Lane:
    """Where a lane of the trace port lies; lanes of the residual stream are ``x0`` and ``x1``."""

    name: str
    low: int
    width: int
    fields: Fields

    @property
    def sequence_bit(self) -> int | None:
        """Bit of the lane that says which sequence, if it does."""
        field = self.fields["sequence"]
        return field.low if field.element_bits else None


def lanes_of(layout: StructLayout) -> list[Lane]:
    """Return the lanes of a trace port in the order of their bits."""
    lanes = []
    for name, part in layout:
        is_array = isinstance(part.shape, ArrayLayout)
        shape = part.shape.elem_shape if is_array else part.shape
        fields = {each.name: each for each in field_bits(shape)}
        lanes += [Lane(f"{name}{index if is_array else ''}", part.offset + index * shape.size,
                       shape.size, fields)
                  for index in range(part.shape.length if is_array else 1)]
    return lanes


@dataclass(frozen=True, slots=True)
class SequenceAnswer:
    """What must come out of one sequence in one phase: the reference's answer to the request."""

    answer: Answer
    # of all tokens since the sequence began, of both oracles; None if the core does not show them
    tensors: Activations | None
    first_token: int  # the phase's first token among these


class CoreStimulus:
    """Makes phases of words from phases of requests."""

    def __init__(
        self, model: QuantizedModel, emitted: EmittedUnit, layout: StructLayout | None,
    ) -> None:
        self._model, self._layout = model, layout
        self._params: CoreParams = emitted.params
        self._ports = UnitPorts.of(emitted.manifest)
        self._program = emitted.manifest["program"]
        self._weights = (
            [int(line, 16) for line in (emitted.folder / CORE_WEIGHTS_FILE).read_text().split()]
            if self._params.external_weights else [])

    def answers(self, phases: Sequence[CorePhase]) -> list[list[SequenceAnswer | None]]:
        """Answer every request, each sequence on its own."""
        for phase in phases:
            asked = [[request] if request else [] for request in phase.requests]
            check_requests(self._params, asked)
            if not all(request.predictions[-1] for queue in asked for request in queue):
                raise ValueError(
                    f"phase {phase.name!r} has a request without a prediction after its last "
                    f"token: nothing would tell when that is done")
        oracles = [Oracle(IntegerModel(self._model), self._model.profile.logit.frac)
                   for _ in range(self._params.sequences)]
        runs: list[list[int]] = [[] for _ in oracles]
        found: list[list[SequenceAnswer | None]] = []
        for phase in phases:
            found.append([None] * len(oracles))
            for sequence, request in enumerate(phase.requests):
                if request is None or phase.cut_after is not None:
                    continue
                answer = oracles[sequence].answer(request)
                before = [] if request.start else runs[sequence]
                runs[sequence] = before + answer.run
                found[-1][sequence] = SequenceAnswer(
                    answer, self._tensors(runs[sequence]) if self._params.trace else None,
                    len(before))
        return found

    def _tensors(self, run: list[int]) -> Activations:
        names = TapRecorder()
        reference = IntegerModel(self._model)
        reference.step(np.array([0]), reference.start(), names)
        return record_activations(self._model, np.array(run), names.names())

    def job(
        self, phases: Sequence[CorePhase], answers: Sequence[Sequence[SequenceAnswer | None]],
        seed: int,
    ) -> Job:
        """The words of every phase."""
        monitored = []
        if self._layout is not None:
            monitored = [MonitoredBits(lane.name, "taps", lane.low, lane.width)
                         for lane in lanes_of(self._layout)]
        return Job(
            self._ports.inputs, self._ports.outputs, seed,
            [self._phase(phase, each) for phase, each in zip(phases, answers, strict=True)],
            levels=self._ports.levels, patience=patience(self._params), monitored=monitored)

    def _phase(self, phase: CorePhase, answers: Sequence[SequenceAnswer | None]) -> Phase:
        inputs: dict[str, list[int]] = {}
        outputs: dict[str, int] = {}
        levels = {"go": 1}
        heads: list[bool] = []      # for each token that runs, whether the head does
        for sequence, (request, expected) in enumerate(
                zip(phase.requests, answers, strict=True)):
            if request is None:
                continue
            inputs[f"prompts__{sequence}"] = prompt_words(
                self._ports.fields[f"prompts__{sequence}"], request)
            levels |= control_levels(self._params, sequence, request)
            if expected is None:        # a phase that is cut: up to its last token
                heads += request.predictions[:-1]
                continue
            heads += expected.answer.predict
            outputs[f"tokens__{sequence}"] = len(expected.answer.generated)
            if self._params.logits:
                outputs[f"logits__{sequence}"] = (
                    len(expected.answer.logits) * self._params.vocab_words)
        if self._params.external_weights:
            inputs["weights"], outputs["weight_requests"] = self._weight_words(heads)
        return Phase(
            phase.name, inputs, {} if phase.cut_after is not None else outputs,
            reset=phase.reset, random_pauses=phase.random_pauses, levels=levels,
            pauses=phase.pauses, cut_after=phase.cut_after or 0)

    def _weight_words(self, heads: Iterable[bool]) -> tuple[list[int], int]:
        """Weight words of all tokens, and how many runs of them the core asks for."""
        runs = weight_runs(self._program, heads)
        return [word for first, count in runs
                for word in self._weights[first:first + count]], len(runs)
