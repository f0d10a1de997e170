"""Phases of requests on an emitted core in cocotb: everything it computes is compared."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sterna.hw.core.plan.image import build_image
from sterna.hw.core.plan.params import CoreParams
from sterna.hw.core.timing.cycles import CycleModel
from sterna.hw.core.token_control import ControlSignature
from sterna.hw.core.trace import trace_layout
from sterna.hw.core.verilog import CORE_WEIGHTS_FILE
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.testbench.activations import Activations
from sterna.hw.testbench.job import Job, Monitor, Pause, Phase, PhaseResult
from sterna.hw.testbench.payloads import UnitPorts, pack_words, read_field
from sterna.hw.testbench.plan import Checks
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.compare import compare
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.taps import TapRecorder
from sterna.sim.bench.activations import record_activations
from sterna.sim.bench.runner import Simulator, run_on
from sterna.sim.core.reference import Answer, Request, answer, compare_logits, compare_tokens
from sterna.sim.core.timing import CyclesCheck, check_stages, check_tokens, cycle_job
from sterna.sim.core.trace import lanes_of, traced_tensors

__all__ = ["CorePhase", "CorePhaseReport", "run_core_phases"]


@dataclass(frozen=True, slots=True)
class CorePhase:
    """What a core is asked in one go: a request, or none, for each sequence.

    Parameters
    ----------
    name
        What it tests, for messages.
    requests
        A request for each sequence; None leaves it alone.
    reset
        Whether the core is reset first; the requests must then start sequences.
    stalls
        Whether all ports pause at random.
    pauses
        Pauses of single ports, in place of what ``stalls`` says.
    cut_after
        If not None: nothing is compared, and the phase ends so many cycles after the last
        prompt token was taken. The next phase must begin with a reset.
    """

    name: str
    requests: tuple[Request | None, ...]
    reset: bool = False
    stalls: bool = False
    pauses: dict[str, Pause] = field(default_factory=dict)
    cut_after: int | None = None


@dataclass(frozen=True, slots=True)
class CorePhaseReport:
    """How a phase came out.

    Parameters
    ----------
    name
        Its name.
    generated
        Tokens that each sequence wrote.
    checks
        Every tensor, the logits and the tokens, compared with both oracles.
    cycles
        Clock cycles in all.
    timing
        Cycles compared with the cycle model, where they can be: without stalls, and with
        two sequences after a reset.
    token_cycles
        For each sequence the cycles in which its tokens came out.
    """

    name: str
    generated: list[list[int]]
    checks: Checks
    cycles: int
    timing: CyclesCheck
    token_cycles: list[list[int]]


def run_core_phases(
    model: QuantizedModel, emitted: EmittedUnit, phases: Sequence[CorePhase], *,
    simulator: Simulator = Simulator.VERILATOR, work: Path | None = None, seed: int = 1,
    waves: bool = False, progress: Callable[[str], None] = lambda message: None,
) -> list[CorePhaseReport]:
    """Run an emitted core in cocotb and compare what it computes with both oracles.

    With a trace port every intermediate tensor is compared, otherwise logits and tokens.

    Parameters
    ----------
    model, emitted
        The quantised model, and the folder of its core.
    phases
        What to ask, one after the other.
    simulator, work, seed, waves
        As for :func:`sterna.sim.simulate.simulate`.
    progress
        Called with a line of text before each stage.

    Raises
    ------
    ValueError
        If a phase has not one request (or None) for each sequence.
    MissingToolError, SimulationError
        As for :func:`sterna.sim.bench.runner.run_on`.
    """
    bench = _CoreBench(model, emitted)
    progress("compute the answers with the reference and onnxruntime")
    plans = bench.plan(phases)
    progress(f"compile and run in {simulator.value}")
    with ExitStack() as stack:
        if work is None:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sterna-")))
        results = run_on(
            simulator, emitted.sources, emitted.module,
            bench.job(phases, plans, seed), work / f"core_{simulator.value}", waves=waves)
    return [
        bench.check(phase, answers, result)
        for phase, answers, result in zip(phases, plans, results, strict=True)
        if phase.cut_after is None]


@dataclass(frozen=True, slots=True)
class _PhaseAnswers:
    """Answers of the sequences of a phase, and the tensors of the sequence up to its end."""

    answers: list[Answer | None]
    tensors: list[Activations | None]
    first_token: list[int]


class _CoreBench:
    """Translates between requests and the words of the ports of an emitted core."""

    def __init__(self, model: QuantizedModel, emitted: EmittedUnit) -> None:
        self._model = model
        self._params: CoreParams = emitted.params
        self._ports = UnitPorts.of(emitted.manifest)
        self._layout = (
            trace_layout(build_image(model, self._params)) if self._params.trace else None)
        self._weights = (
            [int(line, 16) for line in (emitted.folder / CORE_WEIGHTS_FILE).read_text().split()]
            if self._params.external_weights else [])
        self._program = emitted.manifest["program"]

    # What to feed ------------------------------------------------------------------

    def plan(self, phases: Sequence[CorePhase]) -> list[_PhaseAnswers]:
        """Answer every request, each sequence on its own."""
        streams = self._params.streams
        for phase in phases:
            if len(phase.requests) != streams:
                raise ValueError(
                    f"phase {phase.name!r} must have a request for each of {streams} sequences")
        asked = [[phase for phase in phases
                  if phase.requests[sequence] is not None and phase.cut_after is None]
                 for sequence in range(streams)]
        reference = IntegerModel(self._model)
        answers = [
            answer(reference, [
                request for phase in each if (request := phase.requests[sequence])])
            for sequence, each in enumerate(asked)]
        by_phase: dict[tuple[int, int], tuple[Answer, Activations | None, int]] = {}
        for sequence, (each, replies) in enumerate(zip(asked, answers, strict=True)):
            run: list[int] = []
            for phase, reply in zip(each, replies, strict=True):
                run = reply.run if reply.request.start else run + reply.run
                tensors = self._tensors(run) if self._params.trace else None
                by_phase[sequence, id(phase)] = (reply, tensors, len(run) - len(reply.run))
        plans = []
        for phase in phases:
            found = [by_phase.get((sequence, id(phase))) for sequence in range(streams)]
            plans.append(_PhaseAnswers(
                [each[0] if each else None for each in found],
                [each[1] if each else None for each in found],
                [each[2] if each else 0 for each in found]))
        return plans

    def _tensors(self, run: list[int]) -> Activations:
        names = TapRecorder()
        reference = IntegerModel(self._model)
        reference.step(np.array([0]), reference.start(), names)
        return record_activations(self._model, np.array(run), names.names())

    def job(
        self, phases: Sequence[CorePhase], plans: Sequence[_PhaseAnswers], seed: int,
    ) -> Job:
        """The words of every phase."""
        monitors = []
        if self._layout is not None:
            monitors = [Monitor(lane.name, "taps", lane.low, lane.width)
                        for lane in lanes_of(self._layout)]
        # A token takes so many cycles without moving a word at a port.
        patience = 3000 + 4 * int(CycleModel(self._params).cycles_per_token(sampled=True))
        return Job(
            self._ports.inputs, self._ports.outputs, seed,
            [self._phase(phase, plan) for phase, plan in zip(phases, plans, strict=True)],
            levels=self._ports.levels, patience=patience, monitors=monitors)

    def _phase(self, phase: CorePhase, plan: _PhaseAnswers) -> Phase:
        inputs: dict[str, list[int]] = {}
        outputs: dict[str, int] = {}
        levels = {"go": 1}
        stages: list[dict[str, Any]] = []
        controls = ControlSignature(self._params).members
        for sequence, request in enumerate(phase.requests):
            if request is None:
                continue
            inputs[f"prompts__{sequence}"] = self._prompt(sequence, request)
            stop = request.stop is not None
            for name, value in (
                ("limit", request.tokens), ("stop", int(stop)), ("beta", request.job.beta),
                ("stop_token", request.stop or 0), ("seed", request.seed),
            ):
                if name in controls:
                    levels[f"control__{sequence}__{name}"] = value
            reply = plan.answers[sequence]
            heads = request.predict[:-1]    # of a phase that is cut: up to its last token
            if reply is not None:
                heads = tuple(reply.predict)
                outputs[f"tokens__{sequence}"] = len(reply.generated)
                if self._params.logits:
                    outputs[f"logits__{sequence}"] = (
                        len(reply.logits) * self._params.vocab_words)
            for head in heads:
                stages += self._program[:None if head else -1]
        if self._params.external_weights:
            inputs["weights"] = [
                word for stage in stages
                for word in self._weights[stage["first_weight"]:][:stage["beats"]]]
            outputs["weight_requests"] = len(stages)
        return Phase(
            phase.name, inputs, {} if phase.cut_after is not None else outputs,
            reset=phase.reset, stalls=phase.stalls, levels=levels, pauses=phase.pauses,
            linger=phase.cut_after or 0)

    def _prompt(self, sequence: int, request: Request) -> list[int]:
        count = len(request.prompt)
        start = np.zeros(count, dtype=np.int64)
        start[0] = request.start
        return pack_words(self._ports.fields[f"prompts__{sequence}"], {
            "token": np.array(request.prompt), "start": start,
            "predict": np.array(request.predict, dtype=np.int64)})

    # What came out -----------------------------------------------------------------

    def check(
        self, phase: CorePhase, plan: _PhaseAnswers, result: PhaseResult,
    ) -> CorePhaseReport:
        """Compare everything that came out of a phase."""
        checks = Checks()
        generated: list[list[int]] = []
        for sequence, reply in enumerate(plan.answers):
            generated.append([])
            if reply is None:
                continue
            words = result.outputs[f"tokens__{sequence}"]
            fields = self._ports.fields[f"tokens__{sequence}"]
            generated[-1] = read_field(words, fields["token"])[:, 0].tolist() if words else []
            # In the order of computation: the first difference is then the cause.
            tensors = plan.tensors[sequence]
            if tensors is not None:
                for check in self._check_trace(sequence, reply, tensors, plan, result):
                    checks += check
            if self._params.logits:
                checks += self._check_logits(sequence, reply, result)
            checks += Checks(compare_tokens(reply, generated[-1]))
        timing = CyclesCheck()
        # With two sequences the norm remembers, without a reset, whom it served last.
        if (phase.reset or len(plan.answers) == 1) and not phase.stalls and not phase.pauses:
            timing = self._check_cycles(phase, plan, result)
        return CorePhaseReport(
            phase.name, generated, checks, result.cycles, timing,
            [result.taken_at.get(f"tokens__{sequence}", [])
             for sequence in range(self._params.streams)])

    def _check_logits(self, sequence: int, reply: Answer, result: PhaseResult) -> Checks:
        stream = f"logits__{sequence}"
        values = read_field(result.outputs[stream], self._ports.fields[stream]["logits"])
        vocab = self._params.config.vocab
        return Checks(compare_logits(
            reply, values.reshape(len(reply.logits), -1)[:, :vocab]))

    def _check_trace(
        self, sequence: int, reply: Answer, tensors: Activations, plan: _PhaseAnswers,
        result: PhaseResult,
    ) -> Iterator[Checks]:
        assert self._layout is not None
        words = {}
        for lane in lanes_of(self._layout):
            bit = lane.sequence_bit
            words[lane.name] = [
                word for word in result.seen[lane.name]
                if bit is None or word >> bit & 1 == sequence]
        first = plan.first_token[sequence]
        for traced in traced_tensors(
                self._params, self._layout, words, sequence, reply.predict):
            token = first + traced.token
            yield Checks(*(
                compare(traced.tensor, oracle[traced.tensor][token].reshape(1, -1),
                        traced.values.reshape(1, -1), first_token=token)
                for oracle in (tensors.reference, tensors.onnx)))

    def _check_cycles(
        self, phase: CorePhase, plan: _PhaseAnswers, result: PhaseResult,
    ) -> CyclesCheck:
        jobs = [[] if reply is None else [cycle_job(reply)] for reply in plan.answers]
        sequences = range(self._params.streams)
        check = check_tokens(self._params, CycleModel(self._params).run(jobs), [
            result.taken_at.get(f"tokens__{sequence}", []) for sequence in sequences])
        if self._params.trace:
            check += check_stages(
                self._params, CycleModel(self._params).run(jobs), result.seen_at["beat"],
                result.seen_at["z"])
        return check
