"""What came out of an emitted core against what must: tensors, logits, tokens, cycles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amaranth.lib.data import StructLayout

from sterna.hw.core.plan.core_params import CoreParams
from sterna.hw.core.timing.cycles import CycleModel
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.emit.payloads import UnitPorts, read_field
from sterna.hw.testbench.job import PhaseResult
from sterna.hw.testbench.scoreboard import Checks
from sterna.model.quantized.compare import compare
from sterna.sim.core.phases import CorePhase, CorePhaseReport
from sterna.sim.core.reference import Answer, compare_logits, compare_tokens
from sterna.sim.core.stimulus import SequenceAnswer
from sterna.sim.core.timing import CyclesCheck, check_stages, check_tokens
from sterna.sim.core.trace import lanes_of, traced_tensors

__all__ = ["CoreScoreboard"]


class CoreScoreboard:
    """Compares all that an emitted core gave in a phase with the answers of both oracles.

    Parameters
    ----------
    emitted
        The folder of the core.
    layout
        The layout of its trace port; None if it has none.
    """

    def __init__(self, emitted: EmittedUnit, layout: StructLayout | None) -> None:
        self._params: CoreParams = emitted.params
        self._ports = UnitPorts.of(emitted.manifest)
        self._layout = layout

    def check(
        self, phase: CorePhase, answers: Sequence[SequenceAnswer | None], result: PhaseResult,
    ) -> CorePhaseReport:
        """Compare everything that came out of a phase."""
        checks = Checks()
        generated: list[list[int]] = []
        for sequence, expected in enumerate(answers):
            generated.append([])
            if expected is None:
                continue
            words = result.outputs[f"tokens__{sequence}"]
            fields = self._ports.fields[f"tokens__{sequence}"]
            generated[-1] = read_field(words, fields["token"])[:, 0].tolist() if words else []
            # In the order of computation: the first difference is then the cause.
            checks = sum(self._check_trace(sequence, expected, result), checks)
            if self._params.logits:
                checks += self._check_logits(sequence, expected.answer, result)
            checks += Checks(compare_tokens(expected.answer, generated[-1]))
        timing = CyclesCheck()
        # With two sequences the norm remembers, without a reset, whom it served last.
        if (phase.reset or len(answers) == 1) and not phase.random_pauses and not phase.pauses:
            timing = self._check_cycles(answers, result)
        return CorePhaseReport(
            phase.name, generated, checks, result.cycles, timing, self._token_cycles(result))

    def _token_cycles(self, result: PhaseResult) -> list[list[int]]:
        return [result.taken_at.get(f"tokens__{sequence}", [])
                for sequence in range(self._params.sequences)]

    def _check_logits(self, sequence: int, answer: Answer, result: PhaseResult) -> Checks:
        stream = f"logits__{sequence}"
        values = read_field(result.outputs[stream], self._ports.fields[stream]["logits"])
        vectors = values.reshape(-1, self._params.vocab_words * self._params.rows)
        return Checks(compare_logits(answer, vectors[:, :self._params.config.vocab]))

    def _check_trace(
        self, sequence: int, expected: SequenceAnswer, result: PhaseResult,
    ) -> Iterator[Checks]:
        """Compare every tensor that the trace port showed, if there is one."""
        tensors = expected.tensors
        if self._layout is None or tensors is None:
            return
        words = {}
        for lane in lanes_of(self._layout):
            bit = lane.sequence_bit
            words[lane.name] = [
                word for word in result.seen[lane.name]
                if bit is None or word >> bit & 1 == sequence]
        for traced in traced_tensors(
                self._params, self._layout, words, sequence, expected.answer.predict):
            token = expected.first_token + traced.token
            yield Checks(*(
                compare(traced.tensor, oracle[traced.tensor][token].reshape(1, -1),
                        traced.values.reshape(1, -1), first_token=token)
                for oracle in (tensors.reference, tensors.onnx)))

    def _check_cycles(
        self, answers: Sequence[SequenceAnswer | None], result: PhaseResult,
    ) -> CyclesCheck:
        times = CycleModel(self._params).run(
            [[] if expected is None else expected.answer.as_ran() for expected in answers])
        check = check_tokens(self._params, times, self._token_cycles(result))
        if self._layout is not None:
            check += check_stages(
                self._params, times, result.seen_at["beat"], result.seen_at["z"])
        return check
