"""Compare actual and expected outputs of an emitted core: tensors, logits, tokens, cycles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sterna.hw.core.cycles.model import run_cycles
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.emit.payloads import UnitPorts, read_field
from sterna.hw.testbench.job import PhaseResult, SimulationError
from sterna.hw.testbench.scoreboard import Checks
from sterna.model.quantized import QuantizedModel
from sterna.sim.core.reference import compare_logits, compare_tokens
from sterna.sim.core.stimulus import CorePhase, SequenceAnswer
from sterna.sim.core.trace import TracedStep, check_trace

__all__ = ["CorePhaseReport", "CoreScoreboard", "CyclesCheck", "check_tokens"]


@dataclass(frozen=True, slots=True)
class CyclesCheck:
    """Comparison of simulated cycles with the cycle model."""

    events: int = 0  # number compared
    mismatches: int = 0
    first: str | None = None  # the first mismatch, in words

    def __add__(self, other: CyclesCheck) -> CyclesCheck:
        return CyclesCheck(
            self.events + other.events, self.mismatches + other.mismatches,
            self.first or other.first)


def check_tokens(
    predicted: Sequence[Sequence[int]], seen: Sequence[Sequence[int]],
) -> CyclesCheck:
    """Compare the output cycles of the tokens of each sequence."""
    pairs = []
    for sequence, (done, taken) in enumerate(zip(predicted, seen, strict=True)):
        pairs += [(f"token {index} of sequence {sequence}", *each)
                  for index, each in enumerate(zip(done, taken, strict=False))]
        if len(done) != len(taken):
            pairs.append((f"number of tokens of sequence {sequence}", len(done), len(taken)))
    wrong = [f"{what}: the cycle model says {expected}, simulated {simulated}"
             for what, expected, simulated in pairs if expected != simulated]
    return CyclesCheck(len(pairs), len(wrong), wrong[0] if wrong else None)


@dataclass(frozen=True, slots=True)
class CorePhaseReport:
    """Results of a phase."""

    name: str
    checks: Checks  # every tensor, the logits and the tokens against both oracles
    cycles: int  # total clock cycles
    timing: CyclesCheck  # against the cycle model, if predicted
    generated: list[list[int]] = field(default_factory=list)  # tokens of each sequence
    # output cycles of the tokens of each sequence
    token_cycles: list[list[int]] = field(default_factory=list)


class CoreScoreboard:
    """Compares all outputs of an emitted core in a phase with the answers of both oracles.

    ``timed`` says whether the cycle model predicts its cycles.
    """

    def __init__(
        self, model: QuantizedModel, emitted: EmittedUnit, *, timed: bool = True,
    ) -> None:
        self._model, self._timed = model, timed
        self._params: CoreParams = emitted.params
        self._fields = UnitPorts.of(emitted.manifest).fields

    def check(
        self, phase: CorePhase, answers: Sequence[SequenceAnswer], result: PhaseResult,
    ) -> CorePhaseReport:
        """Compare all outputs of a phase."""
        checks = Checks()
        sequences = range(self._params.sequences)
        tokens, cycles = self._tokens(result)
        logits = self._logits(result)
        for sequence in sequences:
            own = [each for each in answers if each.sequence == sequence]
            # In the order of computation, so that the first difference is the cause.
            checks += check_trace(self._model, self._params, result, sequence, [
                TracedStep(each.tensors, each.first_token + index, head)
                for each in own if each.tensors
                for index, head in enumerate(each.answer.predict)])
            left, left_logits = tokens[sequence], logits[sequence]
            for index, each in enumerate(own):
                # The last one gets any excess.
                count, vectors = (
                    (len(each.answer.generated), len(each.answer.logits))
                    if index + 1 < len(own) else (len(left), len(left_logits)))
                checks += Checks(*(
                    compare_logits(oracle, left_logits[:vectors])
                    + compare_tokens(oracle, left[:count])
                    for oracle in (each.answer, each.onnx) if oracle is not None))
                left, left_logits = left[count:], left_logits[vectors:]
        timing = CyclesCheck()
        if self._timed and phase.is_timed:
            timing = check_tokens(self._predicted(answers, cycles), cycles)
        return CorePhaseReport(phase.name, checks, result.cycles, timing, tokens, cycles)

    def _predicted(
        self, answers: Sequence[SequenceAnswer], seen: Sequence[Sequence[int]],
    ) -> list[list[int]]:
        """Cycles of the tokens of each sequence; with a port, relative to the first one."""
        tokens = run_cycles(self._params, self._model.stages, [
            (each.sequence, piece) for each in answers for piece in each.answer.as_ran()]).tokens
        if not self._params.port_bits:
            return tokens
        first, shown = (min((min(each) for each in of if each), default=0) for of in (tokens, seen))
        return [[cycle - first + shown for cycle in each] for each in tokens]

    def _tokens(self, result: PhaseResult) -> tuple[list[list[int]], list[list[int]]]:
        """Tokens of each sequence, and their output cycles."""
        words, fields = result.outputs["tokens"], self._fields["tokens"]
        owners = read_field(words, fields["sequence"]).reshape(-1)
        tokens = read_field(words, fields["token"]).reshape(-1)
        cycles = np.array(result.taken_at["tokens"], dtype=np.int64)
        sequences = range(self._params.sequences)
        return ([tokens[owners == sequence].tolist() for sequence in sequences],
                [cycles[owners == sequence].tolist() for sequence in sequences])

    def _logits(self, result: PhaseResult) -> list[np.ndarray]:
        """Logits ``[predictions, vocab]`` of each sequence."""
        words, fields = result.outputs["logits"], self._fields["logits"]
        owners = read_field(words, fields["sequence"]).reshape(-1)
        values = read_field(words, fields["logits"])
        last = read_field(words, fields["last"]).reshape(-1)
        params, vocab = self._params, self._model.vocab
        count = params.logit_beats(vocab)
        found = []
        for sequence in range(params.sequences):
            own = values[owners == sequence]
            ends = np.flatnonzero(last[owners == sequence]) + 1
            if len(own) % count or ends.tolist() != list(range(count, len(own) + 1, count)):
                raise SimulationError(
                    f"vectors of logits have {count} words, sequence {sequence} gave {len(own)}, "
                    f"of which the last are at {(ends - 1).tolist()}")
            found.append(own.reshape(-1, count * params.post_lanes)[:, :vocab])
        return found
