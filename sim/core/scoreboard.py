"""What came out of an emitted core against what must: tensors, logits, tokens, cycles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from amaranth.lib.data import StructLayout

from sterna.hw.core.core_params import StageKind
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.emit.payloads import UnitPorts, read_field
from sterna.hw.oldcore.plan.core_params import CoreParams, Stage, program
from sterna.hw.oldcore.timing.cycles import CycleModel, TokenTimes
from sterna.hw.testbench.job import PhaseResult, SimulationError
from sterna.hw.testbench.scoreboard import Checks
from sterna.model.quantized.compare import compare
from sterna.sim.core.reference import Answer, compare_logits, compare_tokens
from sterna.sim.core.stimulus import CorePhase, SequenceAnswer, lanes_of

__all__ = [
    "CorePhaseReport", "CoreScoreboard", "CyclesCheck", "TraceReader", "check_stages",
    "check_tokens"]


class TraceReader:
    """Reads the tensors of one sequence from what its lanes of the trace port showed.

    ``words`` are by name of a lane those that were valid for this sequence, in order.
    """

    def __init__(
        self, params: CoreParams, layout: StructLayout, words: Mapping[str, Sequence[int]],
        sequence: int,
    ) -> None:
        self._params, self._words, self._x = params, words, f"x{sequence}"
        self._fields = {lane.name: lane.fields for lane in lanes_of(layout)}
        self._read = dict.fromkeys(self._fields, 0)

    def tensors(self, predict: Sequence[bool]) -> Iterator[tuple[int, str, np.ndarray]]:
        """Yield every tensor: its token in the sequence, its tap name and its flat values.

        ``predict`` says of each token whether the head ran.
        """
        params = self._params
        for token, head in enumerate(predict):
            x = self._take(self._x, params.words(params.config.d), "x")["x"]
            yield token, "embedding.x", x.reshape(-1)[:params.config.d]
            for stage in program(params)[:None if head else -1]:
                for tensor, values in self._stage(stage):
                    yield token, tensor, values
        for name in ("q", "norm", "a", "acc", "z", "mlgru", "glu", self._x):
            left = len(self._words[name]) - self._read[name]
            if left:
                raise SimulationError(f"lane {name} of the trace showed {left} words too many")

    def _take(self, lane: str, count: int, *fields: str) -> dict[str, np.ndarray]:
        """Read fields of the next words of a lane, each ``[count, elements]``."""
        first = self._read[lane]
        words = self._words[lane][first:first + count]
        if len(words) < count:
            raise SimulationError(
                f"lane {lane} of the trace showed {len(self._words[lane])} words, "
                f"too few for the tokens that ran")
        self._read[lane] = first + count
        return {name: read_field(words, self._fields[lane][name]) for name in fields}

    def _stage(self, stage: Stage) -> Iterator[tuple[str, np.ndarray]]:
        params = self._params
        chunks = -(-params.words(stage.columns) * params.rows // params.quant_lanes)
        q = self._take("q", chunks, "q")["q"]
        yield f"{stage.norm}.q", q.reshape(-1)[:stage.columns]
        for part, value in self._take("norm", 1, "m", "r", "s", "n", "v").items():
            yield f"{stage.norm}.{part}", value.reshape(-1)
        scales = self._take("a", 3, "a")["a"]
        sums = self._take("acc", stage.headers, "acc")["acc"]
        results = self._take("z", stage.headers, "value", "full")
        for slot, name in enumerate(stage.projections):
            yield f"{name}.a", scales[slot]
            yield f"{name}.acc", sums[slot::stage.slots].reshape(-1)[:stage.rows]
            kind = "full" if stage.kind is StageKind.RESIDUAL else "value"
            yield f"{name}.z", results[kind][slot::stage.slots].reshape(-1)[:stage.rows]
        at = stage.projections[0].rpartition(".")[0]
        if stage.kind is StageKind.MLGRU:
            names = {"f": "f.sigmoid", "g": "g.sigmoid", "c": "c.silu", "h": "h", "o": "o"}
            yield from self._vectors("mlgru", at, names, stage.rows)
        elif stage.kind is StageKind.GLU:
            names = {"silu": "gate.silu", "p": "p"}
            yield from self._vectors("glu", at, names, stage.rows)
        elif stage.kind is StageKind.RESIDUAL:
            yield from self._vectors(self._x, at, {"x": "x"}, stage.rows)
        else:
            yield "logits", results["value"].reshape(-1)[:stage.rows]

    def _vectors(
        self, lane: str, at: str, names: dict[str, str], channels: int,
    ) -> Iterator[tuple[str, np.ndarray]]:
        words = self._take(lane, self._params.words(channels), *names)
        for field, name in names.items():
            yield f"{at}.{name}", words[field].reshape(-1)[:channels]


@dataclass(frozen=True, slots=True)
class CyclesCheck:
    """Cycles as simulated and as the cycle model predicts them."""

    events: int = 0  # were compared
    mismatches: int = 0
    first: str | None = None  # the first mismatch, in words

    def __add__(self, other: CyclesCheck) -> CyclesCheck:
        return CyclesCheck(
            self.events + other.events, self.mismatches + other.mismatches,
            self.first or other.first)


def check_tokens(
    params: CoreParams, times: Sequence[TokenTimes], taken_at: Sequence[Sequence[int]],
) -> CyclesCheck:
    """Compare the cycles in which generated tokens came out, a list for each sequence.

    A token is offered in the cycle after it was chosen.
    """
    pairs = []
    for sequence in range(params.sequences):
        seen = list(taken_at[sequence])
        done = [token.done + 1 for token in times
                if token.sequence == sequence and token.generates]
        pairs += [(f"token {index} of sequence {sequence}", predicted, simulated)
                  for index, (predicted, simulated) in enumerate(zip(done, seen, strict=False))]
        if len(done) != len(seen):
            pairs.append((f"number of tokens of sequence {sequence}", len(done), len(seen)))
    return _check(pairs)


def check_stages(
    params: CoreParams, times: Sequence[TokenTimes], beats: Sequence[int],
    results: Sequence[int],
) -> CyclesCheck:
    """Compare first and last beat of every stage, first and last word of its results, the counts.

    ``beats`` and ``results`` are the cycles in which the array took beats, and the post-processor
    gave words of results.
    """
    stages = program(params)
    in_order = sorted((stage for token in times for stage in token.stages),
                      key=lambda stage: stage.service)
    pairs = []
    beat = header = 0
    for times_of_stage in in_order:
        stage = stages[times_of_stage.index]
        first, beat = beat, beat + stage.beats
        first_result, header = header, header + stage.headers
        if beat > len(beats) or header > len(results):
            continue    # the counts below say that some are missing
        name = f"of stage {stage.projections[0]}"
        pairs += [
            (f"first beat {name}", times_of_stage.first_beat, beats[first]),
            (f"last beat {name}", times_of_stage.last_beat, beats[beat - 1]),
            (f"first result {name}", times_of_stage.first_result, results[first_result]),
            (f"last result {name}", times_of_stage.last_result, results[header - 1])]
    for what, predicted, seen in (("beats", beat, beats), ("words of results", header, results)):
        if predicted != len(seen):
            pairs.append((f"number of {what}", predicted, len(seen)))
    return _check(pairs)


def _check(pairs: Sequence[tuple[str, int, int]]) -> CyclesCheck:
    wrong = [f"{what}: the cycle model says {predicted}, simulated {simulated}"
             for what, predicted, simulated in pairs if predicted != simulated]
    return CyclesCheck(len(pairs), len(wrong), wrong[0] if wrong else None)


@dataclass(frozen=True, slots=True)
class CorePhaseReport:
    """How a phase came out."""

    name: str
    generated: list[list[int]]  # tokens of each sequence
    checks: Checks  # every tensor, the logits and the tokens against both oracles
    cycles: int  # clock cycles in all
    # Against the cycle model where that can be: without pauses, and with two sequences after a
    # reset.
    timing: CyclesCheck
    token_cycles: list[list[int]]  # in which the tokens of each sequence came out


class CoreScoreboard:
    """Compares all that an emitted core gave in a phase with the answers of both oracles."""

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
            generated[-1] = read_field(words, fields["token"])[:, 0].tolist()
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
        reader = TraceReader(self._params, self._layout, words, sequence)
        for index, name, values in reader.tensors(expected.answer.predict):
            token = expected.first_token + index
            yield Checks(*(
                compare(name, oracle[name][token].reshape(1, -1), values.reshape(1, -1),
                        first_token=token)
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
