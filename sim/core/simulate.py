"""Let an emitted core write text in simulation, and compare it with both oracles."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amaranth.lib import wiring

from sterna.hw.catalog import emit_verilog
from sterna.hw.core.compute.request import LIMIT_BITS, Request
from sterna.hw.core.image.core_image import build_image
from sterna.hw.core.image.linear import pack_image
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.core.product.core_product import CORE
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.emit.payloads import UnitPorts
from sterna.hw.testbench.scoreboard import Checks
from sterna.model.checks import one_of, whole_number
from sterna.model.quantized import QuantizedModel
from sterna.sim.bench.cpp_bench import run_in_cpp
from sterna.sim.bench.runner import Engine, Simulator, check_simulator, run_on, work_folder
from sterna.sim.bench.waves import check_waves, with_views
from sterna.sim.core.memory import ImageMemory, behind_memory
from sterna.sim.core.scoreboard import CorePhaseReport, CoreScoreboard, CyclesCheck
from sterna.sim.core.stimulus import CorePhase, CoreStimulus

__all__ = ["CoreReport", "run_core_phases", "simulate_core"]


def run_core_phases(
    model: QuantizedModel, emitted: EmittedUnit, phases: Sequence[CorePhase], *,
    engine: Engine = Engine.COCOTB, simulator: Simulator = Simulator.VERILATOR,
    work: Path | None = None, seed: int = 1, waves: Path | None = None,
    memory: wiring.Component | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> list[CorePhaseReport]:
    """Run an emitted core and compare what it computes with both oracles.

    With a trace port every intermediate tensor is compared, otherwise logits and tokens. The
    phases run one after the other, and each that is not cut has a report. The other arguments and
    the errors are those of :func:`simulate_core`.

    Parameters
    ----------
    emitted
        A core. With a port it may be of another model, if this one is within its limits.
    memory
        What is behind the port: a component with the streams ``reads`` and ``data``, and files of
        Verilog that it needs in ``sources``. The cycle model does not know its cycles. None for an
        :class:`~sterna.sim.core.memory.ImageMemory` with the model's image.
    """
    has_port = "reads" in UnitPorts.of(emitted.manifest).outputs
    if memory is not None and not has_port:
        raise ValueError("the core has its model in ROMs: no memory goes with it")
    progress("compute the answers with the reference and onnxruntime")
    answers = CoreStimulus(model, emitted).answers(phases)
    with work_folder(work) as folder:
        if has_port:
            image = pack_image(build_image(model, emitted.params))
            emitted = behind_memory(
                emitted, memory or ImageMemory(emitted.params, image), folder / "core_and_memory")
        job, places = CoreStimulus(model, emitted).job(phases, answers, seed)
        progress(f"compile and run in {simulator.value}")
        at = folder / f"core_{engine.value}_{simulator.value}"
        with with_views(waves, emitted.manifest, emitted.sources):
            if engine is Engine.CPP:
                results = run_in_cpp(emitted.sources, emitted.module, job, at, waves=waves)
            else:
                results = run_on(
                    simulator, emitted.sources, emitted.module, job, at, waves=waves)
    scoreboard = CoreScoreboard(model, emitted, timed=memory is None)
    return [
        scoreboard.check(phase, expected, results[place])
        for phase, expected, place in zip(phases, answers, places, strict=True)
        if phase.cut_after is None]


_SHORT = 3
"""Tokens of the phases that come after the text."""


@dataclass(frozen=True, slots=True)
class CoreReport:
    """Result of :func:`simulate_core`."""

    engine: Engine
    simulator: Simulator
    params: CoreParams  #: geometry of the core
    generated: list[list[int]]  #: tokens that each sequence wrote
    #: every phase by name: comparisons, cycles in all, and the check of the cycle model
    phases: list[CorePhaseReport]
    #: of the text: cycles from its first token to its last by the tokens in between, all sequences
    #: together
    cycles_per_token: float | None
    seconds: float = field(compare=False)  #: wall time, compilation included

    @property
    def checks(self) -> Checks:
        """All phases together."""
        return sum((phase.checks for phase in self.phases), Checks())

    @property
    def timing(self) -> CyclesCheck:
        """All checks of the cycle model together."""
        return sum((phase.timing for phase in self.phases), CyclesCheck())

    @property
    def passed(self) -> bool:
        """Whether every value agreed, and every cycle."""
        return self.checks.passed and self.timing.mismatches == 0

    @property
    def failure(self) -> str | None:
        """The first difference in words: where it was found, and what it is."""
        for phase in self.phases:
            if phase.checks.first:
                return f"phase '{phase.name}': {phase.checks.first}"
            if phase.timing.first:
                return f"phase '{phase.name}': {phase.timing.first}"
        return None

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data, for JSON."""
        return {
            "unit": CORE.name, "engine": self.engine.value,
            "simulator": self.simulator.value, "passed": self.passed,
            "seconds": round(self.seconds, 1), "first": self.failure,
            "generated": self.generated, "cycles_per_token": self.cycles_per_token,
            "phases": [
                {"name": phase.name, "cycles": phase.cycles,
                 **phase.checks.as_dict(),
                 "cycle_events": phase.timing.events,
                 "cycle_mismatches": phase.timing.mismatches}
                for phase in self.phases],
        }


def simulate_core(
    model: QuantizedModel, prompts: Sequence[Sequence[int]], tokens: int, *,
    temperature: float = 0.0,
    engine: Engine | str = Engine.COCOTB, simulator: Simulator | str = Simulator.VERILATOR,
    waves: Path | None = None, work: Path | None = None, seed: int = 1,
    emitted: EmittedUnit | None = None,
    prepare: Callable[[EmittedUnit, Path], EmittedUnit] = lambda emitted, work: emitted,
    memory: wiring.Component | None = None,
    progress: Callable[[str], None] = lambda message: None, **sizes: Any,
) -> CoreReport:
    """Run a core on one prompt for each of its sequences, and let it write.

    With cocotb every intermediate tensor of every token is compared with the integer
    reference and with onnxruntime, and the cycles of the text with the cycle model; a
    short prompt then goes on after the text, again with random pauses at every port, and
    once more after a reset in the middle of a token. With C++ the text alone is run, of a core
    without a trace: its tokens, logits and cycles are compared.

    Parameters
    ----------
    model, prompts
        The quantised model, and the prompts, 1 to 64: each is a sequence of its own.
    tokens
        Tokens to write after each prompt, at least 1.
    temperature, seed
        As for :class:`~sterna.model.quantized.sampling.Sampler`; sequence i draws with
        ``seed + i``. The pauses of the bench are drawn from ``seed``, too.
    engine, simulator
        What to run it in; the C++ engine always uses Verilator.
    waves, work, prepare
        As for :func:`sterna.simulate`.
    emitted
        A core emitted before, to simulate instead of a fresh one. It has its sizes already: none
        go with it.
    memory
        What is behind the core's port, see :func:`run_core_phases`.
    progress
        Called with a line of text before each step.
    sizes
        Sizes of the core but for ``sequences`` and ``trace``; see
        :class:`~sterna.hw.core.params.core_params.CoreParams`.

    Raises
    ------
    ValueError
        If the size does not fit the model, a prompt is empty or leaves the vocabulary, or
        an option does not go with the engine or with ``emitted``.
    MissingToolError, SimulationError
        If the simulator is not installed; if the simulation does not compile, fails or hangs.
    """
    engine = one_of("engine", engine, Engine)
    simulator = one_of("simulator", simulator, Simulator)
    requests = _requests(model, prompts, tokens, temperature, seed)
    for size, follows in (("sequences", "prompts"), ("trace", "engine")):
        if size in sizes:
            raise ValueError(f"{size} is no size to give here: it follows from the {follows}")
    if engine is Engine.CPP and simulator is not Simulator.VERILATOR:
        raise ValueError(f"the engine cpp runs in verilator, not in {simulator.value}")
    check_waves(waves, simulator)
    check_simulator(simulator, work)
    if emitted is not None:
        CORE.check_emitted(emitted, sizes)
        if emitted.params.sequences < len(requests):
            raise ValueError(f"the core has {emitted.params.sequences} sequences, "
                             f"got {len(requests)} prompts")
    started = time.monotonic()
    with work_folder(work) as folder:
        if emitted is None:
            progress("emit the Verilog")
            emitted = emit_verilog(
                model, CORE.name, folder / CORE.name, trace=engine is Engine.COCOTB,
                sequences=1 << (len(prompts) - 1).bit_length(), **sizes)
        emitted = prepare(emitted, folder)
        phases = run_core_phases(
            model, emitted, _phases(requests, engine), engine=engine, simulator=simulator,
            work=folder, seed=seed, waves=waves, memory=memory, progress=progress)
    return CoreReport(
        engine, simulator, emitted.params, phases[0].generated, phases,
        _cycles_per_token(phases[0]), time.monotonic() - started)


def _requests(
    model: QuantizedModel, prompts: Sequence[Sequence[int]], tokens: int, temperature: float,
    seed: int,
) -> tuple[Request, ...]:
    """A request for each sequence."""
    tokens = whole_number("tokens", tokens, 1, (1 << LIMIT_BITS) - 1)
    seed = whole_number("seed", seed, 1)
    requests = tuple(
        Request(tuple(whole_number("a token of a prompt", token, 0) for token in prompt),
                tokens, temperature, seed + sequence)
        for sequence, prompt in enumerate(prompts))
    if not requests:
        raise ValueError("give one prompt for each sequence, got none")
    for request in requests:
        request.check_vocab(model.vocab)
    return requests


def _phases(requests: tuple[Request, ...], engine: Engine) -> list[CorePhase]:
    """The text, and what a core must survive."""
    text = CorePhase("text", tuple(enumerate(requests)), reset=True)
    if engine is Engine.CPP:
        return [text]
    again = tuple(enumerate(
        Request(request.prompt[:4], min(request.tokens, _SHORT), request.temperature, 7)
        for request in requests))
    onward = tuple(enumerate(
        Request(request.prompt[:2], min(request.tokens, _SHORT), request.temperature,
                start=False) for request in requests))
    return [
        text,
        CorePhase("prompt after the text", onward),
        CorePhase("random pauses", again, random_pauses=True),
        CorePhase("cut in mid-token", again, cut_after=97),
        CorePhase("after a reset in mid-token", again, reset=True),
    ]


def _cycles_per_token(text: CorePhaseReport) -> float | None:
    """Cycles from token to token, all sequences together; None with fewer than 2 tokens."""
    spans = [(cycles[-1] - cycles[0]) / (len(cycles) - 1)
             for cycles in text.token_cycles if len(cycles) > 1]
    return max(spans) / len(spans) if spans else None
