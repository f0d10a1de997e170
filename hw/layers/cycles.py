"""Cycles of a unit of matrices, or of a layer, exact as long as its ports never stall."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from sterna.hw.core.cycles.model import Machine, MemoryTiming, Reader
from sterna.hw.core.cycles.report import TokenCycles
from sterna.hw.core.image.program import Stage
from sterna.hw.layers.layer_params import LayerParams
from sterna.model.quantized.plan import StageKind, StagePlan

__all__ = ["UnitCycles", "frame_cycles", "result_times", "unit_cycles"]

_STEADY = 8     # vectors that determine the rate, after as many others


@dataclass(frozen=True, slots=True)
class UnitCycles:
    """Cycles of a vector if the ports never stall.

    ``latency``: from its first word taken to its last word of results offered; with several
    sequences, of all their vectors. ``period``: between vectors in steady state.
    """

    latency: int
    period: float


class _Unit(Machine):
    """Common part of both units: when result words are ready."""

    def __init__(self, params: LayerParams, lanes: int) -> None:
        super().__init__(params, params.placed)
        self.words = [params.words_in(index, lanes) for index in range(len(self.program))]
        self.times: list[int] = []

    def give_head(self, phase: int, sequence: int, last: bool) -> None:
        # The sums of a residual stream leave two cycles after the addends.
        latency = self.post.latency + 2 * (self.program[-1].kind is StageKind.LAST)
        self.later(latency + 2, self.post.gone)
        self.times.append(self.cycle + latency + 2)
        if last and sequence == self.params.batch - 1:
            self.later(latency, self.release, phase)

    @abstractmethod
    def release(self, phase: int) -> None:
        """The results of a phase are out: it may take vectors."""


class _Matrices(_Unit):
    def __init__(self, params: LayerParams) -> None:
        super().__init__(params, params.quant_lanes)
        self.busy = [False, False]
        self.loading = self.chunk = 0

    def release(self, phase: int) -> None:
        self.busy[phase] = False

    def run(self, matrices: list[int]) -> list[int]:
        """Return the cycles in which result words are offered, for consecutive vectors."""
        params, waiting = self.params, list(matrices)
        expected = sum(self.program[each].groups * params.row_beats for each in matrices)
        per_tile = params.cols // params.quant_lanes
        while len(self.times) < expected:
            self.post.step()
            self.products.step()
            if waiting and not self.busy[self.loading]:
                phase, matrix = self.loading, waiting[0]
                last = self.chunk == self.words[matrix] - 1
                if self.chunk == 0:
                    self.later(0, self._begin, phase, matrix)
                    self.later(1, self.post.scaled, phase)
                if last or self.chunk % per_tile == per_tile - 1:
                    self.later(1, self.products.activated, phase, last)
                self.chunk += 1
                if last:
                    self.chunk = 0
                    self.later(0, self._loaded, phase)
                    waiting.pop(0)
            self.end_cycle()
            self.cycle += 1
        return self.times

    def _begin(self, phase: int, matrix: int) -> None:
        self.phases[phase].stage = self.program[matrix]
        self.give_job(phase)

    def _loaded(self, phase: int) -> None:
        self.busy[phase] = True
        self.loading = 1 - phase


class _Layer(_Unit):
    def __init__(
        self, params: LayerParams, memory: MemoryTiming | None = None, *, rested: bool = False,
    ) -> None:
        super().__init__(params, params.post_lanes)
        if params.port_bits:
            self.reader = Reader(self, memory or MemoryTiming())
            if rested:
                self.rest()
        self.own = self.words[0]
        self.total = params.vector_beats
        # Cycles from the last word to its vector's largest magnitude.
        self.latency = params.frame_steps + (params.post_lanes - 1).bit_length()
        self.loaded = [False] * params.sequences
        self.word = 0

    def release(self, phase: int) -> None:
        batch = self.params.batch
        self.loaded[phase * batch:(phase + 1) * batch] = [False] * batch

    def run(self, sequences: list[int]) -> list[int]:
        """As in :class:`_Matrices`, for vectors of these sequences."""
        params, waiting = self.params, list(sequences)
        expected = len(waiting) * self.program[-1].groups * params.row_beats
        while len(self.times) < expected:
            if self.reader:
                self.reader.step()
            self.post.step()
            self.products.step()
            self.cells.step()
            asked = [self._step_phase(index) for index in range(params.phases)]
            self.norm.step(self.choose(asked))
            if waiting and (self.word >= self.own or not self.loaded[waiting[0]]):
                self.word += 1
                if self.word == self.total:
                    self.word = 0
                    number = waiting.pop(0)
                    self.later(self.latency, self.completed, number // params.batch)
                    self.later(0, self._load, number)
            self.end_cycle()
            self.cycle += 1
        return self.times

    def _load(self, number: int) -> None:
        self.loaded[number] = True

    def _step_phase(self, index: int) -> bool:
        """Step a phase; return whether it requests its next stage."""
        phase = self.phases[index]
        if phase.complete != self.params.batch:
            return phase.waits
        phase.complete = 0
        phase.stage = self.program[phase.index]
        phase.index = (phase.index + 1) % len(self.program)
        return True


def result_times(
    params: LayerParams, vectors: list[int], memory: MemoryTiming | None = None, *,
    rested: bool = True,
) -> list[int]:
    """Return the cycles in which result words are offered, counted from the first word taken.

    ``vectors``: consecutive ones, each the index of its matrix; for a layer, the number of its
    sequence, which take turns. ``memory`` is behind the port, if there is one; as much as there is
    room for has been prefetched, or nothing if the unit has not ``rested``.
    """
    if params.limits.normalizes:
        return _Layer(params, memory, rested=rested).run(vectors)
    return _Matrices(params).run(vectors)


@cache
def unit_cycles(
    params: LayerParams, memory: MemoryTiming | None = None,
) -> tuple[UnitCycles, ...]:
    """Cycles of each matrix, or of a layer."""
    found = []
    matrices = range(len(params.limits.program))
    for matrix in [0] if params.limits.normalizes else matrices:
        turn = list(range(params.sequences)) if params.limits.normalizes else [matrix]
        # Prefetched words would hide a slow memory for many vectors.
        times = result_times(params, turn * 2 * _STEADY, memory, rested=False)
        ends = times[len(times) // (2 * _STEADY) - 1::len(times) // (2 * _STEADY)]
        # Two vectors may be in flight, so the spacing of consecutive ends may alternate.
        first = result_times(params, turn, memory)[-1] if params.port_bits else ends[0]
        found.append(UnitCycles(first, (ends[-1] - ends[_STEADY - 1]) / _STEADY / len(turn)))
    return tuple(found)


def frame_cycles(
    params: LayerParams, plans: Sequence[StagePlan], memory: MemoryTiming | None = None,
) -> TokenCycles:
    """Uses of the cycles of a frame of a network in steady state; ``plans`` are its stages."""
    unit = _Layer(params, memory)
    turns, words = 2 * _STEADY, params.words_out(len(unit.program) - 1) * params.sequences
    times = unit.run(list(range(params.sequences)) * turns)
    unit.products.decide(0)
    # Not to the end: a result is recorded before the cycle in which it is offered.
    begin, end = (times[turn * words - 1] for turn in (_STEADY - 1, turns - 1))
    uses = unit.result.uses(begin, end)
    places = {id(stage): index for index, stage in enumerate(unit.program)}

    def name(stage: Stage | None) -> str:
        if stage is None:
            return "frame"
        first, *others = plans[places[id(stage)]].matrices
        return " ".join([first, *(each.rpartition(".")[2] for each in others)])

    return TokenCycles.of_uses(uses, _STEADY * params.sequences, name)
