"""Simulate the emitted Verilog of a network on frames, and compare every result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sterna.hw.catalog import emit_verilog
from sterna.hw.core.image.linear import pack_image
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.emit.payloads import UnitPorts, pack_words
from sterna.hw.layers.documents import patience, vector_values
from sterna.hw.layers.layer_params import LayerParams
from sterna.hw.layers.network_product import NETWORK, network_image
from sterna.hw.testbench.job import Job, Phase, PhaseResult
from sterna.hw.testbench.scoreboard import Checks, ExpectedTensor, ScoredPhase, check_phase
from sterna.hw.testbench.stimulus import last_flags
from sterna.model.checks import one_of
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.compare import Comparison
from sterna.sim.bench.cpp_bench import run_in_cpp
from sterna.sim.bench.runner import Engine, Simulator, check_simulator, run_on, work_folder
from sterna.sim.bench.waves import check_waves, with_views
from sterna.sim.core.memory import ImageMemory, behind_memory
from sterna.sim.core.reference import record_activations, tensor_names
from sterna.sim.core.trace import TracedStep, check_trace, monitored_lanes
from sterna.sim.reports import PhaseReport, SimulationReport

__all__ = ["simulate_network"]

_FEW = 4
"""Frames of a phase that does not test the frames themselves."""


def simulate_network(
    model: QuantizedModel, recordings: Sequence[np.ndarray], *,
    engine: Engine | str = Engine.COCOTB, simulator: Simulator | str = Simulator.VERILATOR,
    waves: Path | None = None, work: Path | None = None, seed: int = 1,
    emitted: EmittedUnit | None = None,
    prepare: Callable[[EmittedUnit, Path], EmittedUnit] = lambda emitted, work: emitted,
    progress: Callable[[str], None] = lambda message: None, **sizes: Any,
) -> SimulationReport:
    """Run the Verilog of a network on recordings and compare every result, and with a trace port
    every tensor, with the integer reference and with onnxruntime.

    Parameters
    ----------
    model
        A network over frames.
    recordings
        Integer frames, ``[length, channels]`` each, from ``model.integers``; each begins with a
        fresh state. They are assigned to the sequences of the unit in turn.
    engine
        ``cocotb`` with a trace port, random pauses, a reset in mid-vector and extreme frames;
        ``cpp`` for thousands of frames, without pauses or trace.
    simulator, waves, work, seed, emitted, prepare, progress, sizes
        As for :func:`sterna.simulate`; ``trace`` is not allowed as a size.

    Raises
    ------
    ValueError
        If the model is not one of frames, there are no recordings, one has no frames, frames have
        the wrong length or range, or a size does not fit.
    MissingToolError, SimulationError
        As for :func:`sterna.simulate`.
    """
    engine, simulator = one_of("engine", engine, Engine), one_of("simulator", simulator, Simulator)
    if engine is Engine.CPP and simulator is not Simulator.VERILATOR:
        raise ValueError(f"the engine cpp runs in verilator, not in {simulator.value}")
    NETWORK.check_sizes(sizes)
    if "trace" in sizes:
        raise ValueError("trace is no size to give here: it follows from the engine")
    check_waves(waves, simulator)
    check_simulator(simulator, work)
    if emitted is not None:
        NETWORK.check_emitted(emitted, sizes)
    started = time.monotonic()
    with work_folder(work) as folder:
        if emitted is None:
            progress("emit the Verilog")
            emitted = emit_verilog(model, NETWORK.name, folder / NETWORK.name,
                                   trace=engine is Engine.COCOTB, **sizes)
        emitted = prepare(emitted, folder)
        if emitted.params.port_bits:
            image = pack_image(network_image(model, emitted.params))
            emitted = behind_memory(
                emitted, ImageMemory(emitted.params, image), folder / "network_and_memory")
        frames = [model.entry.array(each, ["length"]) for each in recordings]
        if not frames:
            raise ValueError("there must be at least one recording")
        count = sum(map(len, frames))
        progress(f"compute {count} frames with the reference and onnxruntime")
        phases = _Phases(model, emitted)
        scored = [phases.of("recordings", frames, random_pauses=engine is Engine.COCOTB)]
        if engine is Engine.COCOTB:
            few = [frames[0][:_FEW]] * phases.params.sequences
            scored += [
                phases.of("no pauses", few, random_pauses=False), phases.cut("cut in mid-vector"),
                phases.of("after a reset in mid-vector", few, reset=True),
                phases.of("extremes", [_extremes(model)] * phases.params.sequences)]
        progress(f"compile and run in {simulator.value}")
        ports = UnitPorts.of(emitted.manifest)
        job = Job(ports.inputs, ports.outputs, seed, [each.scored.phase for each in scored],
                  levels=ports.levels, patience=patience(emitted),
                  monitored=monitored_lanes(phases.params))
        place = folder / f"{NETWORK.name}_{engine.value}_{simulator.value}"
        with with_views(waves, emitted.manifest, emitted.sources):
            results = (
                run_in_cpp(emitted.sources, emitted.module, job, place, waves=waves)
                if engine is Engine.CPP else
                run_on(simulator, emitted.sources, emitted.module, job, place, waves=waves))
    return SimulationReport(
        NETWORK.name, simulator, count, seed, scored[0].agreement,
        [PhaseReport(each.scored.phase.name, each.scored.phase.beats, result.cycles,
                     phases.check(each, result))
         for each, result in zip(scored, results, strict=True)],
        time.monotonic() - started)


@dataclass(frozen=True, slots=True)
class _NetworkPhase:
    """A phase, the agreement of the oracles, and the steps of each sequence."""

    scored: ScoredPhase
    agreement: Comparison = field(default_factory=Comparison)
    steps: Sequence[Sequence[TracedStep]] = ()


class _Phases:
    """Makes phases of recordings for an emitted network and checks the results."""

    def __init__(self, model: QuantizedModel, emitted: EmittedUnit) -> None:
        self._model = model
        self.params: LayerParams = emitted.params
        self._fields = UnitPorts.of(emitted.manifest).fields
        self._names = tensor_names(model) if self.params.trace else [model.entry.result]

    def of(
        self, name: str, recordings: Sequence[np.ndarray], *, reset: bool = False,
        random_pauses: bool = True,
    ) -> _NetworkPhase:
        """The phase of recordings: those of a sequence follow each other, and shorter ones repeat
        their last frame to equal lengths."""
        params, sequences = self.params, self.params.sequences
        # Fill the last round with the first recordings.
        many = -(-len(recordings) // sequences) * sequences
        chosen = [recordings[index % len(recordings)] for index in range(many)]
        longest = max(map(len, chosen))
        if sequences > 1:
            chosen = [np.pad(each, ((0, longest - len(each)), (0, 0)), mode="edge")
                      for each in chosen]
        tensors = record_activations(self._model, chosen, self._names)
        turns = [[TracedStep(own, index) for own in tensors[sequence::sequences]
                  for index in range(own.tokens)] for sequence in range(sequences)]
        inputs: list[int] = []
        expected: list[ExpectedTensor] = []
        word = 0
        for together in zip(*turns, strict=True):
            for sequence, step in enumerate(together):
                inputs += pack_words(self._fields["vectors"], vector_values(
                    params, step.tensors.text[step.index], start=step.index == 0,
                    sequence=sequence))
            for first in range(0, sequences, params.batch):
                own = range(first, first + params.batch)
                found, word = self._results(together, own, word)
                expected += found
        phase = Phase(name, {"vectors": inputs}, {"results": word}, reset=reset,
                      random_pauses=random_pauses)
        return _NetworkPhase(ScoredPhase(phase, expected), sum(
            (each.agreement for each in tensors), Comparison()), turns)

    def check(self, phase: _NetworkPhase, result: PhaseResult) -> Checks:
        """Compare the outputs, tensors first: their first difference is the cause."""
        return sum(
            (check_trace(self._model, self.params, result, sequence, steps)
             for sequence, steps in enumerate(phase.steps)), Checks(),
        ) + check_phase(phase.scored, result.outputs)

    def _results(
        self, together: Sequence[TracedStep], sequences: Sequence[int], word: int,
    ) -> tuple[list[ExpectedTensor], int]:
        """Expected results of sequences that alternate after each group of array rows; and the
        number of words up to their end."""
        params, fields = self.params, self._fields["results"]
        beats, rows, expected = params.row_beats, params.rows, []
        groups = params.words_out(len(params.limits.program) - 1) // beats
        for group in range(groups):
            for sequence in sequences:
                step = together[sequence]
                part = slice(group * rows, (group + 1) * rows)
                results = [oracle[self._model.entry.result][step.index][part]
                           for oracle in (step.tensors.reference, step.tensors.onnx)]
                flags = last_flags(beats) if group == groups - 1 else np.zeros(beats, np.int64)
                own = {"y": ("results", *results), "last": ("last", flags)}
                if "sequence" in fields:
                    own["sequence"] = ("sequence", np.full(beats, sequence))
                expected += [ExpectedTensor(
                    step.index, f"{name} of sequence {sequence}, from channel {group * rows} on",
                    "results", word, beats, fields[of], *values)
                    for of, (name, *values) in own.items()]
                word += beats
        return expected, word

    def cut(self, name: str) -> _NetworkPhase:
        """A phase with some words of a vector and no expected results."""
        values = vector_values(self.params, np.zeros(self.params.channels, np.int64), start=True)
        words = pack_words(self._fields["vectors"], values)
        return _NetworkPhase(ScoredPhase(
            Phase(name, {"vectors": words[:max(len(words) // 2, 1)]}, {})))


def _extremes(model: QuantizedModel) -> np.ndarray:
    """Frames with extremes of the range, zeros, and random values of all magnitudes."""
    entry, rng = model.entry, np.random.default_rng(1)
    ends = np.array([entry.low, entry.high, 0, -1, 1])
    index = np.arange(entry.shape[0])
    corners = np.stack([np.full(entry.shape, end) for end in ends]
                       + [ends[(index + shift) % 5] for shift in range(3)])
    sizes = np.arange(8)[:, None]
    return np.concatenate([
        corners, rng.integers(entry.low, entry.high + 1, (8, *entry.shape)) >> 2 * sizes])
