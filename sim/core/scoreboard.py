"""What came out of an emitted core against what must: tensors, logits, tokens, cycles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sterna.hw.core.core_params import CoreParams
from sterna.hw.core.cycle_model import run_cycles
from sterna.hw.core.program import Stage, place_stages
from sterna.hw.core.trace import lanes_of
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.emit.payloads import UnitPorts, read_field
from sterna.hw.testbench.job import PhaseResult, SimulationError
from sterna.hw.testbench.scoreboard import Checks
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.compare import compare
from sterna.model.quantized.plan import StageKind, StagePlan
from sterna.sim.core.reference import compare_logits, compare_tokens
from sterna.sim.core.stimulus import CorePhase, SequenceAnswer

__all__ = ["CorePhaseReport", "CoreScoreboard", "CyclesCheck", "TraceReader", "check_tokens"]


class TraceReader:
    """Reads the tensors of one sequence from what its lanes of the trace port showed.

    ``words`` are by name of a lane those that were valid for this sequence, in order.
    """

    def __init__(
        self, params: CoreParams, plans: Sequence[StagePlan], words: Mapping[str, Sequence[int]],
        sequence: int,
    ) -> None:
        self._params, self._words = params, words
        self._stages = place_stages(plans, params)
        self._x = f"x{sequence // params.batch}"
        self._fields = {lane.name: lane.fields for lane in lanes_of(params)}
        self._read = dict.fromkeys(self._fields, 0)

    def tensors(self, predict: Sequence[bool]) -> Iterator[tuple[int, str, np.ndarray]]:
        """Yield every tensor: its token in the sequence, its tap name and its flat values.

        ``predict`` says of each token whether the head ran.
        """
        first = self._stages[0]
        for token, head in enumerate(predict):
            yield token, "embedding.x", self._x_of(first.chunks)[:first.plan.columns]
            for stage in self._stages[:None if head else -1]:
                for tensor, values in self._stage(stage):
                    yield token, tensor, values
        for name, read in self._read.items():
            left = len(self._words[name]) - read
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

    def _x_of(self, chunks: int) -> np.ndarray:
        """The next vector of the residual stream."""
        params = self._params
        words = chunks * params.quant_lanes // params.post_lanes
        return self._take(self._x, words, "y")["y"].reshape(-1)

    def _stage(self, stage: Stage) -> Iterator[tuple[str, np.ndarray]]:
        params, plan = self._params, stage.plan
        q = self._take("q", stage.chunks, "q")["q"]
        yield f"{plan.norm}.q", q.reshape(-1)[:plan.columns]
        for lane, parts in (("maximum", ("m", "r")), ("root", ("s", "n")), ("scale", ("v",))):
            values = self._take(lane, 1, *parts)
            for part, value in values.items():
                if part != "r" or values["m"].any():
                    yield f"{plan.norm}.{part}", value.reshape(-1)
        scales = self._take("a", 3, "scale")["scale"]
        count = stage.headers * params.row_beats
        sums = self._take("acc", count, "acc")["acc"]
        results = self._take("z", count, "z", "logits", "full")
        of_kind = {StageKind.RESIDUAL: "full", StageKind.HEAD: "logits"}.get(stage.kind, "z")
        for slot, name in enumerate(plan.matrices):
            def own(
                values: np.ndarray, slot: int = slot, slots: int = len(plan.matrices),
            ) -> np.ndarray:
                grouped = values.reshape(stage.groups, slots, params.rows)
                return grouped[:, slot].reshape(-1)[:stage.rows]

            yield f"{name}.a", scales[slot]
            yield f"{name}.acc", own(sums)
            yield f"{name}.z", own(results[of_kind])
        if stage.kind is StageKind.HEAD:
            yield "logits", results["logits"].reshape(-1)[:stage.rows]
        elif stage.kind is StageKind.RESIDUAL:
            (_, name), = plan.values
            yield name, self._x_of(
                stage.groups * params.rows // params.quant_lanes)[:stage.rows]
        else:
            names = dict(plan.values)
            words = self._take(stage.kind.name.lower(),
                               stage.groups * params.rows // params.cell_lanes, *names)
            for part, name in names.items():
                yield name, words[part].reshape(-1)[:stage.rows]


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
    predicted: Sequence[Sequence[int]], seen: Sequence[Sequence[int]],
) -> CyclesCheck:
    """Compare the cycles in which the tokens of each sequence came out."""
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
    """How a phase came out."""

    name: str
    checks: Checks  # every tensor, the logits and the tokens against both oracles
    cycles: int  # clock cycles in all
    timing: CyclesCheck  # against the cycle model, where it knows them
    generated: list[list[int]] = field(default_factory=list)  # tokens of each sequence
    # in which the tokens of each sequence came out
    token_cycles: list[list[int]] = field(default_factory=list)


class CoreScoreboard:
    """Compares all that an emitted core gave in a phase with the answers of both oracles.

    ``timed``: whether the cycle model knows its cycles.
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
        """Compare everything that came out of a phase."""
        checks = Checks()
        sequences = range(self._params.sequences)
        tokens, cycles = self._tokens(result)
        logits = self._logits(result)
        for sequence in sequences:
            own = [each for each in answers if each.sequence == sequence]
            # In the order of computation: the first difference is then the cause.
            checks = sum(self._check_trace(sequence, own, result), checks)
            left, left_logits = tokens[sequence], logits[sequence]
            for index, each in enumerate(own):
                # The last one gets what there is too much.
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
        """Cycles of the tokens of each sequence; behind a port after the first one's."""
        tokens = run_cycles(self._params, self._model.stages, [
            (each.sequence, piece) for each in answers for piece in each.answer.as_ran()]).tokens
        if not self._params.port_bits:
            return tokens
        first, shown = (min((min(each) for each in of if each), default=0) for of in (tokens, seen))
        return [[cycle - first + shown for cycle in each] for each in tokens]

    def _tokens(self, result: PhaseResult) -> tuple[list[list[int]], list[list[int]]]:
        """Tokens of each sequence, and the cycles in which they came out."""
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

    def _check_trace(
        self, sequence: int, own: Sequence[SequenceAnswer], result: PhaseResult,
    ) -> Iterator[Checks]:
        """Compare every tensor that the trace port showed, if there is one."""
        if not self._params.trace:
            return
        words = {}
        for lane in lanes_of(self._params):
            seen = result.seen[lane.name]
            owners = read_field(seen, lane.fields["sequence"]).reshape(-1)
            words[lane.name] = [word for word, owner in zip(seen, owners, strict=True)
                                if owner == sequence]
        # The request of each token, and the token among those of its sequence.
        tokens = [(each, each.first_token + index)
                  for each in own for index in range(len(each.answer.run))]
        reader = TraceReader(self._params, self._model.stages, words, sequence)
        for index, name, values in reader.tensors(
                [head for each in own for head in each.answer.predict]):
            each, token = tokens[index]
            tensors = each.tensors
            assert tensors is not None
            yield Checks(*(
                compare(name, oracle[name][token].reshape(1, -1), values.reshape(1, -1),
                        first_token=token)
                for oracle in (tensors.reference, tensors.onnx)))
