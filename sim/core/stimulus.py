"""From requests to the words that are sent to an emitted core, and what must come out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from amaranth.lib.data import StructLayout

from sterna.hw.core.core_product import (
    CORE_WEIGHTS_FILE,
    control_levels,
    patience,
    prompt_words,
    weight_runs,
)
from sterna.hw.core.plan.core_params import CoreParams
from sterna.hw.core.plan.request import check_requests
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.emit.payloads import UnitPorts
from sterna.hw.testbench.job import Job, MonitoredBits, Phase
from sterna.hw.testbench.stimulus import Activations
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.taps import TapRecorder
from sterna.sim.bench.activations import record_activations
from sterna.sim.core.phases import CorePhase
from sterna.sim.core.reference import Answer, Oracle
from sterna.sim.core.trace import lanes_of

__all__ = ["CoreStimulus", "SequenceAnswer"]


@dataclass(frozen=True, slots=True)
class SequenceAnswer:
    """What must come out of one sequence in one phase: the reference's answer to the request.

    ``tensors`` are those of all tokens since the sequence began, of both oracles, or None for
    a core that does not show them; ``first_token`` is the phase's first token among these.
    """

    answer: Answer
    tensors: Activations | None
    first_token: int


class CoreStimulus:
    """Makes phases of words from phases of requests.

    Parameters
    ----------
    model, emitted
        The quantised model, and the folder of its core.
    layout
        The layout of the core's trace port; None if it has none.
    """

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
        """Answer every request, each sequence on its own.

        Returns
        -------
        list[list[SequenceAnswer | None]]
            For each phase and each sequence; None for one that is left alone or cut.

        Raises
        ------
        ValueError
            If a phase has not one request (or None) for each sequence, or one that the core
            cannot run, or one that ends without a prediction: its end would not be seen.
        """
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
