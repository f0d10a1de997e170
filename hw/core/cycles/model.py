"""Cycles of a core, exact as long as no port stalls: its control, without the data.

Only the next token depends on the data that a core computes, so the timing follows from the
requests alone. Each class here is the control of the component of the same name, one step per
cycle; a pipeline is an event some cycles later. A core soon returns to the state of a group of
rows, a layer or a token before: :class:`_Repeats` skips such repetitions.
"""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from sterna.hw.core.compute.datapath import READ_CYCLES
from sterna.hw.core.compute.norm import ACT_STEPS, READ_AHEAD, sum_steps
from sterna.hw.core.compute.request import Request
from sterna.hw.core.compute.sampler import draw_cycles
from sterna.hw.core.image.program import Stage, place_stages
from sterna.hw.core.image.reader import DECODE_STEPS
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.core.params.geometry import ADDED, LEAVES, Geometry
from sterna.model.quantized.plan import StageKind, StagePlan

__all__ = [
    "STEADY_TOKENS", "CoreCycles", "Machine", "MemoryTiming", "Reader", "Use",
    "cycles_per_token", "run_cycles", "steady_uses"]

STEADY_TOKENS = 4
"""Tokens of each sequence that :func:`steady_uses` counts."""


def _levels(lanes: int) -> int:
    return (lanes - 1).bit_length()


@dataclass(frozen=True, slots=True)
class MemoryTiming:
    """A memory behind the port: the first word of a request arrives ``latency`` cycles after it,
    then ``rate`` words per cycle. Up to ``requests`` are queued."""

    latency: int = 20
    rate: Fraction = Fraction(1)
    requests: int = 8

    @classmethod
    def of_bandwidth(cls, gigabytes: float, clock_mhz: float, port_bits: int) -> MemoryTiming:
        """A memory with a bandwidth in 10^9 bytes per second, for a core at a clock: at most a word
        per cycle. Raises ValueError unless the bandwidth is above 0."""
        if not 0 < gigabytes < math.inf:
            raise ValueError(f"the bandwidth must be a positive number of 10^9 bytes per second, "
                             f"got {gigabytes}")
        rate = Fraction(8000 * gigabytes / (clock_mhz * port_bits)).limit_denominator(1000)
        return cls(rate=min(max(rate, Fraction(1, 1000)), Fraction(1)))


class Use(enum.StrEnum):
    """Use of a cycle of the array: a beat, or what the next beat waits for."""

    BEATS = "beats"
    """A beat of the array."""
    NORM = "norm"
    """Activations: the vector is complete, but not yet normalised and quantised."""
    WEIGHTS = "weights"
    """Weights through the port; everything else is ready."""
    SCALE = "scale"
    """Sums that wait for their scale: a root and a reciprocal."""
    POST = "post"
    """Sums that wait while the post-processor, or the cells, are busy with others."""
    PIPELINE = "pipeline"
    """Sums, results or the maximum of a vector in pipeline registers."""
    TOKEN = "token"
    """The last logits, the choice of a token, and its embedding."""


@dataclass(slots=True)
class CoreCycles:
    """Timing of a run, in cycles since the first prompt was offered.

    ``tokens``: for each sequence, the cycles in which its tokens are output. ``beats``: cycles with
    a beat of the array. ``words``: read through the port. ``cycles``: in total. ``codes``: encoded
    use of each cycle and stage of ``program``, for :meth:`uses`.
    """

    program: list[Stage]
    tokens: list[list[int]]
    codes: list[int] = field(default_factory=list)
    beats: int = 0
    words: int = 0
    cycles: int = 0

    def uses(self, begin: int = 0, end: int | None = None) -> Counter[tuple[Stage | None, Use]]:
        """Count the cycles from ``begin`` to before ``end`` by stage and use; between two tokens,
        the stage is None."""
        return Counter({_use_of(code, self.program): count
                        for code, count in Counter(self.codes[begin:end]).items()})


_USES = tuple(Use)
_BETWEEN = -1   # code of a cycle between two tokens


def _code(stage: int, use: Use) -> int:
    """Encode the use of a cycle for a stage, given by its index in the program."""
    return stage * len(_USES) + _USES.index(use)


def _use_of(code: int, program: list[Stage]) -> tuple[Stage | None, Use]:
    if code == _BETWEEN:
        return None, Use.TOKEN
    stage, use = divmod(code, len(_USES))
    return program[stage], _USES[use]


@dataclass(slots=True)
class _Phase:
    """The round of a phase."""

    stage: Stage
    index: int = 0
    running: bool = False
    embeds: bool = False
    waits: bool = False
    complete: int = 0
    rested: int = READ_CYCLES


@dataclass(slots=True)
class _Prompt:
    sequence: int
    predicts: bool
    limit: int
    is_warm: bool


@dataclass(slots=True)
class _Sequence:
    waiting: bool = False
    generating: bool = False
    held: bool = False
    predicts: bool = False
    will_predict: bool = False
    is_warm: bool = False
    left: int = 0
    known: int = 0      # first cycle in which a round may begin for it

    @property
    def wants(self) -> bool:
        """Whether a token is requested."""
        return self.generating and self.predicts


class Machine(ABC):
    """Norm, array, post-processor and cells, cycle by cycle.

    A subclass steps them, and handles the results of heads.
    """

    def __init__(self, params: Geometry, stages: list[Stage]) -> None:
        self.params = params
        self.program = stages
        self.cycle = 0
        # Actions at the end of each cycle.
        self.events: dict[int, list] = defaultdict(list)
        self.phases = [_Phase(stages[0]) for _ in range(params.phases)]
        self.last_phase = 0
        self.result = CoreCycles(stages, [[] for _ in range(params.sequences)])
        self.embedder: Any = None
        self.reader: Reader | None = None
        self.rounds = 0     # of phases and of the reader, which have reached their last stage
        self.norm, self.products, self.post = _Norm(self), _Products(self), _Post(self)
        self.cells = _Cells(self)

    def later(self, cycles: int, action, *arguments) -> None:
        """Schedule an action at the end of the cycle so many cycles later."""
        self.events[self.cycle + cycles].append((action, arguments))

    def end_cycle(self) -> None:
        """Run the actions at the end of this cycle."""
        for action, arguments in self.events.pop(self.cycle, ()):
            action(*arguments)

    def give_job(self, phase: int) -> None:
        """Give array and post-processor a job."""
        self.products.freshen(phase)
        self.post.freshen(phase)

    def completed(self, index: int) -> None:
        """Count a complete vector of a phase."""
        self.phases[index].complete += 1

    def choose(self, asked: list[bool]) -> int | None:
        """Return the phase that gets the norm, if any."""
        for phase, asks in zip(self.phases, asked, strict=True):
            phase.waits = asks
        if not any(asked) or self.norm.active:
            return None
        chosen = 1 - self.last_phase if all(asked) and len(asked) > 1 else asked.index(True)
        self.phases[chosen].waits = False
        self.last_phase = chosen
        self.later(1, self.give_job, chosen)
        return chosen

    def rest(self) -> None:
        """Prefetch until the reader's ring is full, and start counting then."""
        words, reader = -1, self.reader
        assert reader is not None
        while words != self.result.words or reader.asked:
            words = self.result.words
            for _ in range(reader.memory.latency + 16):
                reader.step()
                self.end_cycle()
                self.cycle += 1
        # All requested words have been processed, so time may restart.
        self.cycle = self.result.words = reader.clock = 0

    @abstractmethod
    def give_head(self, phase: int, sequence: int, last: bool) -> None:
        """The post-processor takes a beat of a head in this cycle."""


class _Model(Machine):
    """A core, cycle by cycle."""

    def __init__(
        self, params: CoreParams, plans: Sequence[StagePlan], memory: MemoryTiming,
    ) -> None:
        super().__init__(params, place_stages(plans, params))
        self.params: CoreParams = params
        self.sequences = [_Sequence() for _ in range(params.sequences)]
        self.waits: _Prompt | None = None
        self.is_free = False    # the sequence of that prompt
        self.busy = [False] * params.sequences  # in the previous cycle
        self.sampler = _Sampler(self)
        self.embedder = (_PortEmbedder if params.port_bits else _Embedder)(self)
        self.reader = Reader(self, memory) if params.port_bits else None
        self.prompts: deque[_Prompt] = deque()
        self.tokens = 0     # yet to be output
        self.skipped = 0    # cycles skipped as repetitions

    def run(self, prompts: deque[_Prompt], tokens: int) -> CoreCycles:
        """Run until so many tokens have been output."""
        self.prompts, self.tokens = prompts, tokens
        repeats = _Repeats(self)
        while self.tokens:
            taken = self._take()
            self.busy = [each.waiting or each.generating or each.held or each.predicts
                         for each in self.sequences]
            if self.reader:
                self.reader.step()
            self.post.step()
            self.products.step()
            self.cells.step()
            asked = [self._step_phase(index, phase) for index, phase in enumerate(self.phases)]
            self.norm.step(self.choose(asked))
            embeds = self.embedder.step(
                [index for index, phase in enumerate(self.phases) if phase.embeds])
            if embeds is not None:
                self.phases[embeds].embeds = False
            given = self.sampler.step()
            chosen = given is not None and self.sequences[given].wants
            self.end_cycle()
            if given is not None and chosen:
                self._give(given)
            if taken is not None:
                self._begin(taken)
            self.cycle += 1
            if self.products.group_ends:
                repeats.leap()
        self.products.decide(0)
        self.result.cycles = self.cycle + self.skipped
        return self.result

    # Sequences -------------------------------------------------------------------------

    def own(self, phase: int) -> list[_Sequence]:
        batch = self.params.batch
        return self.sequences[phase * batch:(phase + 1) * batch]

    def _take(self) -> _Prompt | None:
        """Return the waiting prompt if its sequence takes it; if none waits, fetch the next one."""
        waits = self.waits
        if waits is None:
            self.waits = self.prompts.popleft() if self.prompts else None
            return None
        if self.is_free and self.sampler.given is None and not self.sampler.is_choosing:
            self.waits, self.is_free = None, False
            return waits
        self.is_free = not self.busy[waits.sequence]
        return None

    def _begin(self, prompt: _Prompt) -> None:
        each = self.sequences[prompt.sequence]
        each.waiting, each.will_predict = True, prompt.predicts
        each.known = self.cycle + 2
        each.generating = prompt.predicts and prompt.limit > 0
        each.is_warm, each.left = prompt.is_warm, prompt.limit

    def _give(self, number: int) -> None:
        each = self.sequences[number]
        each.left -= 1
        each.generating = each.waiting = each.left > 0
        each.will_predict, each.known = True, self.cycle + 1
        self.tokens -= 1
        self.result.tokens[number].append(self.cycle + self.skipped + 2)

    # Rounds ----------------------------------------------------------------------------

    def _step_phase(self, index: int, phase: _Phase) -> bool:
        """Step a phase; return whether it requests its next stage."""
        if phase.running and phase.complete != self.params.batch and self.sampler.given is None:
            phase.rested = min(phase.rested + 1, READ_CYCLES)
            return phase.waits
        own = self.own(index)
        following = self.program[phase.index]
        all_complete = phase.complete == self.params.batch
        begins = (phase.rested == READ_CYCLES and not phase.running
                  and any(each.waiting and each.known <= self.cycle for each in own))
        given = self.sampler.given
        ended = (all_complete and following.kind is StageKind.HEAD
                 and not any(each.predicts for each in own)) or (
            given is not None and divmod(given, self.params.batch) == (
                index, self.params.batch - 1))
        phase.rested = 0 if all_complete else min(phase.rested + 1, READ_CYCLES)
        if all_complete:
            phase.complete = 0
            phase.stage = following
            is_head = following.kind is StageKind.HEAD
            phase.index = 0 if is_head else phase.index + 1
            self.rounds += is_head
        if begins:
            self.later(0, self._start_round, index)
            phase.embeds = True
        if ended:
            self.later(0, self._end_round, index)
        return (all_complete and not ended) or phase.waits

    def _start_round(self, index: int) -> None:
        self.phases[index].running = True
        for each in self.own(index):
            each.held, each.predicts = each.waiting, each.waiting and each.will_predict
            each.waiting = False
        if self.reader:
            self.reader.begins(any(each.predicts for each in self.own(index)))

    def _end_round(self, index: int) -> None:
        self.phases[index].running = False
        for each in self.own(index):
            each.predicts = False

    def release(self, index: int) -> None:
        """The tokens of a phase have been read."""
        for each in self.own(index):
            each.held = False

    def give_head(self, phase: int, sequence: int, last: bool) -> None:
        # Through the queue at the port, or dropped before it if unwanted.
        post = self.post
        self.later(post.latency + 1 + self.own(phase)[sequence].predicts, post.gone)
        if last and sequence == self.params.batch - 1:
            self.later(post.latency + 1 + _levels(self.params.post_lanes),
                       self.sampler.complete, phase)


class _Component:
    """A component of a machine. :meth:`state` excludes the attributes in ``apart``: counters that
    :class:`_Repeats` handles, cycles, and constants."""

    apart: frozenset[str] = frozenset({"model"})

    def __init__(self, model: Machine) -> None:
        self.model = model

    def state(self) -> tuple[Any, ...]:
        """All that the next cycles depend on, except counters; times are relative to now. An extra
        attribute only hides a repetition; a missing one causes a false one."""
        return tuple([tuple(value) if type(value) in (list, deque) else value
                      for name, value in vars(self).items() if name not in self.apart])


class _Norm(_Component):
    def __init__(self, model: Machine) -> None:
        super().__init__(model)
        norm = model.params.norm
        self.spacing = model.params.norm_spacing
        # The vector is read before its reciprocal is ready, except with a divider.
        self.found = norm.reciprocal_steps - (0 if model.params.compact else READ_AHEAD)
        self.quotient = norm.quotient_steps
        # From the last activations of a vector to its first scale.
        self.root = sum_steps(model.params) + norm.root.latency
        self.active = self.settled = self.waiting = self.ready = False
        self.phase = self.sequence = 0
        self.following = (0, 0, 0, 0)   # phase, sequence, chunks, gap
        self.rooted = False     # in the previous cycle
        self.reading = False
        self.read = (0, 0, 0, 0)
        self.place = 0
        self.rest = self.spacing

    def step(self, job: int | None) -> None:
        model, batch = self.model, self.model.params.batch
        self._stream()
        settled, self.settled = self.settled, self.active
        rooted, self.rooted = self.rooted, False
        if (self.active and settled and not self.waiting and not self.ready
                and not rooted):
            chunks = model.phases[self.phase].stage.chunks
            self.following = (
                self.phase, self.sequence, chunks, max(self.spacing - chunks, 0))
            self.waiting = True
            model.later(self.found, self._found)
            self.sequence += 1
            if self.sequence == batch:
                self.sequence = 0
                self.active = False
        elif not self.active and job is not None:
            self.active, self.phase = True, job

    def _found(self) -> None:
        self.waiting, self.ready = False, True

    def _stream(self) -> None:
        model, params = self.model, self.model.params
        gap = self.following[3]
        last = self.reading and self.place == self.read[2] - 1
        taken = self.ready and (
            last and gap == 0 if self.reading else self.rest >= gap)
        if self.reading:
            phase, _, _, _ = self.read
            per_tile = params.cols // params.quant_lanes
            tile_ends = last or self.place % per_tile == per_tile - 1
            if tile_ends:
                model.later(ACT_STEPS, model.products.activated, phase, last)
            self.place += 1
            if last:
                root = ACT_STEPS + self.root
                model.later(root - 1, self._is_rooted)
                model.later(root + self.quotient + 1, model.post.scaled, phase)
                self.reading = False
        self.rest = 0 if last else min(self.rest + 1, self.spacing)
        if taken:
            self.reading, self.read, self.place = True, self.following, 0
            self.ready = False

    def _is_rooted(self) -> None:
        self.rooted = True


class _Worker(_Component):
    """Common part of Products and Post: the queue of phases, and for each phase the number of
    vectors, or scales, available."""

    def __init__(self, model: Machine) -> None:
        super().__init__(model)
        self.jobs: deque[int] = deque()
        self.active = False
        self.phase = self.sequence = 0
        self.counts = [0] * model.params.phases

    def freshen(self, phase: int) -> None:
        self.counts[phase] = 0
        self.jobs.append(phase)


class _Products(_Worker):
    apart = frozenset({"model", "headers", "begun", "undecided"})

    def __init__(self, model: Machine) -> None:
        super().__init__(model)
        self.tile = self.headers = 0
        self.begun = 0          # jobs
        self.group_ends = False     # in this cycle
        self.kept = self.sums = 0
        self.act_phase = self.tiles = 0
        self.is_taken = False   # by Post, in this cycle
        self.words = 0          # in the ring
        self.latency = model.params.array_latency
        self.undecided: list[list[int]] = []    # for each phase

    def step(self) -> None:
        model, params = self.model, self.model.params
        stage = model.phases[self.phase].stage
        has_acts = self.sequence < self.counts[self.phase] or (
            self.sequence == self.counts[self.phase] and self.act_phase == self.phase
            and self.tile < self.tiles)
        has_word = not model.reader or self.words > 0
        last_tile = self.tile == stage.tiles - 1
        has_room = self.kept != params.sum_depth or not last_tile
        self.group_ends = job_ends = False
        if not self.active:
            self.undecided.append([self._missed(index) for index in range(params.phases)])
        elif not (has_acts and has_word and has_room):
            self._note(Use.NORM if not has_acts else Use.WEIGHTS if has_room else model.post.awaits)
        else:
            self._note(Use.BEATS)
            model.result.beats += 1
            if last_tile:
                self.kept += 1
                # In the cycle itself, before Post looks.
                model.later(self.latency - 1, self._summed)
            self.sequence += 1
            if self.sequence == params.batch:
                self.sequence = 0
                self.tile += 1
                if model.reader:
                    self.words -= 1
                    model.reader.free_words += 1
                if last_tile:
                    self.tile = 0
                    self.group_ends = True
                    self.headers -= 1
                    job_ends = self.headers == 0
        if not self.active or job_ends:
            self.active = bool(self.jobs)
            if self.jobs:
                self.phase = self.jobs.popleft()
                self.begun += 1
                self.decide(self.phase)
                self.headers = model.phases[self.phase].stage.headers
        self.kept -= self.is_taken
        self.sums -= self.is_taken

    def _note(self, use: Use) -> None:
        self.model.result.codes.append(_code(self._stage_of(self.phase), use))

    def _stage_of(self, index: int) -> int:
        """Index of a phase's stage; that of its head if the first one is next."""
        return (self.model.phases[index].index or len(self.model.program)) - 1

    def _missed(self, index: int) -> int:
        """Code of a cycle of a phase while the array has no job."""
        phase, post = self.model.phases[index], self.model.post
        if phase.waits or index in self.jobs:
            return _code(self._stage_of(index), Use.NORM)
        if self.sums and (index in post.jobs or (post.active and post.phase == index)):
            return _code(self._stage_of(index), post.awaits)
        return _code(self._stage_of(index), Use.PIPELINE) if phase.index else _BETWEEN

    def decide(self, phase: int) -> None:
        """Attribute the cycles since the last job to this phase, which the array waited for."""
        self.model.result.codes += [each[phase] for each in self.undecided]
        self.undecided.clear()

    def _summed(self) -> None:
        self.sums += 1

    def activated(self, phase: int, last: bool) -> None:
        self.act_phase = phase
        self.tiles += 1
        if last:
            self.tiles = 0
            self.counts[phase] += 1


class _Post(_Worker):
    apart = frozenset({"model", "left"})

    def __init__(self, model: Machine) -> None:
        super().__init__(model)
        self.latency = model.params.post_latency
        self.part = self.slot = self.left = 0
        self.begins = False
        self.logits = 0     # taken and not yet gone
        self.has_logit_room = True
        self.awaits = Use.PIPELINE  # the use of a cycle of the array that waits for this

    def step(self) -> None:
        model, params = self.model, self.model.params
        stage = model.phases[self.phase].stage
        products, cells = model.products, model.cells
        is_head = stage.kind in LEAVES
        room = self.has_logit_room if is_head else not self.begins or cells.has_room
        # One more may be taken before this is known.
        self.has_logit_room = self.logits < params.logit_depth - 1
        group_ends = products.is_taken = False
        is_scaled = self.sequence < self.counts[self.phase]
        self.awaits = (Use.PIPELINE if not products.sums
                       else Use.POST if is_scaled else Use.SCALE)
        if self.active and products.sums and is_scaled and room:
            last_part = self.part == params.row_beats - 1
            last_slot = self.slot == len(stage.plan.matrices) - 1
            last = last_part and self.left == 1
            cells.begins = self.begins
            self.begins = False
            if is_head:
                self.logits += 1
                model.give_head(self.phase, self.sequence, last)
            elif stage.kind in ADDED:
                if last:
                    model.later(self.latency + 2 + _levels(params.post_lanes),
                                model.completed, self.phase)
            elif last_slot:
                model.later(self.latency, cells.gather, self.phase, stage.kind, last)
            self.part += 1
            if last_part:
                self.part = 0
                products.is_taken = True
                self.sequence += 1
                if self.sequence == params.batch:
                    self.sequence = 0
                    group_ends = True
                    if model.reader:
                        model.reader.free_headers += 1
                    self.left -= 1
                    self.begins = last_slot and len(stage.plan.matrices) > 1
                    self.slot = 0 if last_slot else self.slot + 1
        if not self.active or (group_ends and self.left == 0):
            self.active = bool(self.jobs)
            if self.jobs:
                self.phase = self.jobs.popleft()
                stage = model.phases[self.phase].stage
                self.left = stage.headers
                self.begins = len(stage.plan.matrices) > 1

    def gone(self) -> None:
        """A beat of a head has been taken at the port or dropped."""
        self.logits -= 1

    def scaled(self, phase: int) -> None:
        self.counts[phase] += 1


class _Cells(_Component):
    def __init__(self, model: Machine) -> None:
        super().__init__(model)
        params = model.params
        self.group = params.batch * params.row_beats
        self.parts = params.post_lanes // params.cell_lanes
        self.part = self.kept = 0
        self.waiting: deque[tuple[int, StageKind, bool]] = deque()
        self.begins = False     # a group, in this cycle
        self.has_room = True    # in the previous cycle

    def step(self) -> None:
        params = self.model.params
        self.has_room = self.kept <= params.preact_depth - self.group
        if self.begins:
            self.kept += self.group
            self.begins = False
        if self.waiting:
            phase, kind, last = self.waiting[0]
            self.part += 1
            if self.part == self.parts:
                self.part = 0
                self.waiting.popleft()
                self.kept -= 1
                if last:
                    unit = params.glu if kind is StageKind.GLU else params.mlgru
                    self.model.later(1 + unit.latency + _levels(params.post_lanes),
                                     self.model.completed, phase)

    def gather(self, phase: int, kind: StageKind, last: bool) -> None:
        self.waiting.append((phase, kind, last))


class _Embedder(_Component):
    model: _Model

    def __init__(self, model: _Model) -> None:
        super().__init__(model)
        self.active = self.reading = False
        self.phase = self.sequence = self.upcoming = self.word = self.words = 0
        self.since = 0      # cycles for which the next sequence has been known, up to 3

    def step(self, asks: list[int]) -> int | None:
        """The phase whose job is taken."""
        model, params = self.model, self.model.params
        last_word = self.word == self.words - 1
        done = self.reading and last_word and self.sequence == params.batch - 1
        self.since = min(self.since + 1, 3)
        known = self.since == 3
        if not self.active:
            self.since = 0
            self.upcoming = 0
            if not asks:
                return None
            self.active, self.phase = True, asks[-1]
            chunks = model.program[0].chunks
            self.words = chunks * params.quant_lanes // params.post_lanes
            return self.phase
        if self.reading and last_word:
            model.later(3 + _levels(params.post_lanes), model.completed, self.phase)
        if not self.reading or last_word:
            if done:
                model.later(0, model.release, self.phase)
            self.reading = known and not done
            self.word = 0
            self.sequence = self.upcoming
            self.active = not done
            if known:
                self.since = 0
                self.upcoming += not done
        else:
            self.word += 1
        return None


class _PortEmbedder(_Component):
    model: _Model

    def __init__(self, model: _Model) -> None:
        super().__init__(model)
        self.asks = self.comes = False
        self.asked = self.sequence = self.word = self.words = self.part = 0
        self.row_words = model.params.row_parts(model.program[0].plan.columns)

    def step(self, asks: list[int]) -> int | None:
        """The phase whose job is taken."""
        model, params = self.model, self.model.params
        if self.asks or self.comes or not asks:
            return None
        self.asks = self.comes = True
        self.asked = self.sequence = 0
        self.words = model.program[0].chunks * params.quant_lanes // params.post_lanes
        return asks[-1]

    def is_asked(self) -> None:
        """The row of a token is about to be requested."""
        self.asked += 1
        if self.asked == self.model.params.batch:
            self.asks = False
            self.model.later(0, self.model.release, 0)

    def takes(self) -> bool:
        """Whether an offered word of a row is taken in this cycle."""
        params = self.model.params
        ratio = params.post_lanes * params.element_bits // params.port_bits
        self.part += 1
        if ratio > 1:
            if self.part == ratio:
                self.part = 0
                self._came()
            return True
        last = self.word == self.words - 1
        self._came()
        if last or self.part == params.port_bits // (params.post_lanes * params.element_bits):
            self.part = 0
            return True
        return False

    def _came(self) -> None:
        model, params = self.model, self.model.params
        self.word += 1
        if self.word == self.words:
            self.word = 0
            model.later(2 + _levels(params.post_lanes), model.completed, 0)
            self.sequence += 1
            self.comes = self.sequence != params.batch


class Reader(_Component):
    """The image reader, once it has checked the image, and the memory behind it."""

    apart = frozenset({"model", "memory", "index", "left", "stage", "asked", "clock"})

    def __init__(self, model: Machine, memory: MemoryTiming) -> None:
        super().__init__(model)
        params = model.params
        self.memory = memory
        self.header_words = params.row_beats * params.header_parts
        self.rest = 0       # cycles until the next state
        self.next = self._after(1, self._load)
        self.index = self.left = 0
        self.stage = model.program[0]
        self.free_words = self.free_headers = params.ring
        self.enough = False
        # Without tokens, every stage is used.
        self.begun = self.has_head = model.embedder is None
        self.asked: deque[tuple[int, int, bool]] = deque()  # cycle, words, whether of a row
        self.place = 0
        # Time of the next word from the memory, in cycles times the numerator of its rate.
        self.clock = 0
        self.cycles, self.words = memory.rate.denominator, memory.rate.numerator

    def step(self) -> None:
        # Words requested in this cycle may arrive in the next one.
        arriving = self.asked[0] if self.asked else None
        enough = self.free_words >= self.stage.tiles and self.free_headers > 0
        if self.rest:
            self.rest -= 1
        else:
            self.next = self.next()
        self.enough = enough
        if arriving is not None:
            self._take(*arriving)

    def begins(self, predicts: bool) -> None:
        self.begun, self.has_head = True, predicts

    def state(self) -> tuple[Any, ...]:
        cycle, latency = self.model.cycle, self.memory.latency
        return (*super().state(), self.stage.kind, self.stage.tiles,
                max(self.clock - cycle * self.words, 1 - self.words),
                *[(min(cycle - since, latency), words, is_row)
                  for since, words, is_row in self.asked])

    # The states of the requests, each of which returns the next one -----------------------

    def _after(self, cycles: int, state):
        """Return a state after so many cycles: a memory is read, or a register settles."""
        self.rest = cycles
        return state

    def _load(self):
        self.stage = self.model.program[self.index]
        self.left = self.stage.headers
        return self._after(1, self._choose)

    def _choose(self):
        embedder, is_last = self.model.embedder, self.stage is self.model.program[-1]
        if embedder and embedder.asks:
            embedder.is_asked()
            return self._after(2, self._ask_row)
        if is_last and self.begun and not self.has_head:
            return self._again()
        if self.enough and (self.begun or not is_last):
            return self._group
        return self._choose

    def _again(self):
        self.index, self.begun = 0, self.model.embedder is None
        self.model.rounds += 1
        return self._after(1, self._load)

    def _ask_row(self):
        if len(self.asked) == self.memory.requests:
            return self._ask_row
        self.asked.append((self.model.cycle, self.model.embedder.row_words, True))
        return self._choose

    def _group(self):
        if len(self.asked) == self.memory.requests:
            return self._group
        stage = self.stage
        self.asked.append((self.model.cycle, self.header_words
                           + stage.tiles * self.model.params.weight_parts, False))
        self.free_words -= stage.tiles
        self.free_headers -= 1
        self.left -= 1
        if self.left:
            return self._after(2, self._choose)
        if stage is self.model.program[-1]:
            return self._again()
        self.index += 1
        return self._after(1, self._load)

    def _take(self, since: int, words: int, is_row: bool) -> None:
        """Take a word of the first request, if it has arrived."""
        model = self.model
        now = model.cycle * self.words
        if model.cycle < since + self.memory.latency or self.clock > now:
            return
        if is_row and not model.embedder.takes():
            return
        # An idle memory gets ahead by less than a word.
        self.clock = max(self.clock, now - self.words + 1) + self.cycles
        model.result.words += 1
        self.place += 1
        in_weights = self.place - self.header_words
        if not is_row and in_weights > 0 and in_weights % model.params.weight_parts == 0:
            model.later(DECODE_STEPS - 1, self._filled)
        if self.place == words:
            self.place = 0
            self.asked.popleft()

    def _filled(self) -> None:
        self.model.products.words += 1


class _Sampler(_Component):
    model: _Model

    def __init__(self, model: _Model) -> None:
        super().__init__(model)
        self.ready: deque[int] = deque()
        self.phase = self.sequence = 0
        self.chooses = False
        self.busy = 0           # cycles until a token is drawn
        self.given: int | None = None   # the sequence that has a token
        self.draw = draw_cycles(model.params, model.program[-1].rows)
        self.is_choosing = False

    def step(self) -> int | None:
        """Step; return the sequence that has a token in this cycle."""
        given, self.given = self.given, None
        model = self.model
        if self.busy:
            self.busy -= 1
            if not self.busy:
                self._found()
        elif self.chooses:
            each = model.own(self.phase)[self.sequence]
            if each.wants and each.is_warm:
                self.busy = self.draw
            else:
                self._found()
        elif self.ready:
            self.phase = self.ready.popleft()
            self.chooses = True
        # Also in the next cycle, in which the new random number is stored.
        self.is_choosing = (
            self.chooses and self.busy in (0, self.draw) and not model.params.compact)
        return given

    def _found(self) -> None:
        self.given = self.phase * self.model.params.batch + self.sequence
        self.sequence += 1
        if self.sequence == self.model.params.batch:
            self.sequence = 0
            self.chooses = False

    def complete(self, phase: int) -> None:
        self.ready.append(phase)


@dataclass(frozen=True, slots=True)
class _Mark:
    """The counters of a model when it was in a state."""

    cycles: int
    jobs: int
    rounds: int
    groups: list[int]   # left for array, post-processor and reader
    left: list[int]     # tokens of each sequence
    beats: int
    words: int
    tokens: list[int]   # output, of each sequence


class _Repeats:
    """Skips cycles that repeat earlier ones.

    A model that returns to an earlier state repeats its behaviour since then: a group of rows, a
    token or some layers. This continues while there are groups, tokens or layers left, except for
    the last one, which is followed by something else.
    """

    def __init__(self, model: _Model) -> None:
        self.model = model
        self.marks: dict[tuple[Any, ...], _Mark] = {}
        shapes = [(each.kind, len(each.plan.matrices), each.groups, each.chunks, each.tiles)
                  for each in model.program[:-1]]
        # Stages of a layer, the period of the program.
        self.layer = next(
            size for size in range(1, len(shapes) + 1) if shapes[size:] == shapes[:-size])

    def leap(self) -> None:
        """Skip every repetition that is certain."""
        model, state = self.model, self._state()
        places = [each.index for each in self._placed()]
        now = self._mark()
        mark = self.marks.get((*places, state))
        if mark is not None:
            if mark.jobs == now.jobs:
                self._repeat(mark, now, _times(mark.groups, now.groups))
            elif mark.groups == now.groups:
                self._repeat(mark, now, _times(mark.left, now.left))
        elif min(places) > self.layer:
            mark = self.marks.get((*[place - self.layer for place in places], state))
            if (mark is not None and mark.rounds == now.rounds and mark.groups == now.groups
                    and mark.left == now.left):
                room = len(model.program) - 2 - max(places)
                self._repeat(mark, now, room // self.layer, self.layer)
        self.marks[*places, state] = now

    def _placed(self) -> list[Any]:
        """The objects with an index into the program."""
        model = self.model
        return [*model.phases, *([model.reader] if model.reader else [])]

    def _state(self) -> tuple[Any, ...]:
        model = self.model
        components: Iterable[Any] = (
            model.norm, model.products, model.post, model.cells, model.sampler, model.embedder,
            *([model.reader] if model.reader else []))
        return (
            *[each.state() for each in components],
            *[(each.stage.kind, each.running, each.embeds, each.waits, each.complete, each.rested)
              for each in model.phases],
            *[(each.waiting, each.generating, each.held, each.predicts, each.will_predict,
               each.is_warm, max(each.known - model.cycle, 0)) for each in model.sequences],
            # The number of prompts in the queue identifies the waiting one.
            *model.busy, model.last_phase, model.waits is None, model.is_free, len(model.prompts),
            *sorted((cycle - model.cycle, tuple(events))
                    for cycle, events in model.events.items()))

    def _mark(self) -> _Mark:
        model, reader = self.model, self.model.reader
        return _Mark(
            len(model.result.codes), model.products.begun, model.rounds,
            [model.products.headers, model.post.left, reader.left if reader else 0],
            [each.left for each in model.sequences], model.result.beats, model.result.words,
            [len(each) for each in model.result.tokens])

    def _repeat(self, mark: _Mark, now: _Mark, times: int, stages: int = 0) -> None:
        """Repeat the events since a mark, each time so many stages further on."""
        if times < 1:
            return
        model, result = self.model, self.model.result
        period = now.cycles - mark.cycles
        model.skipped += times * period
        # If stages advance, no phase is between two tokens: each code has a stage.
        own = result.codes[mark.cycles:]
        for again in range(1, times + 1):
            ahead = _code(again * stages, _USES[0])
            result.codes += [code + ahead for code in own] if ahead else own
        model.products.begun += times * (now.jobs - mark.jobs)
        model.rounds += times * (now.rounds - mark.rounds)
        result.beats += times * (now.beats - mark.beats)
        result.words += times * (now.words - mark.words)
        for given, before, after in zip(result.tokens, mark.tokens, now.tokens, strict=True):
            given += [cycle + again * period for again in range(1, times + 1)
                      for cycle in given[before:after]]
            model.tokens -= times * (after - before)
        for each in self._placed():
            each.index += times * stages
        less = [times * (before - after)
                for before, after in zip(mark.groups, now.groups, strict=True)]
        model.products.headers -= less[0]
        model.post.left -= less[1]
        if model.reader:
            model.reader.left -= less[2]
        for each, before, after in zip(model.sequences, mark.left, now.left, strict=True):
            each.left -= times * (before - after)


def _times(before: list[int], now: list[int]) -> int:
    """How often each number can decrease by the same amount again with two left: a last group
    behaves differently from its first part on."""
    taken = [old - new for old, new in zip(before, now, strict=True)]
    if min(taken) < 0:
        return 0
    return min(((new - 2) // each for each, new in zip(taken, now, strict=True) if each), default=0)


def run_cycles(
    params: CoreParams, plans: Sequence[StagePlan], requests: Sequence[tuple[int, Request]],
    memory: MemoryTiming | None = None,
) -> CoreCycles:
    """Run requests, offered one after another, each with its sequence, on a core that has been
    idle for a while. ``memory`` is behind the port, if there is one.

    A stop token never occurs.
    """
    prompts = deque(
        _Prompt(sequence, request.predicts_after(position), request.tokens,
                request.beta != 0 and not params.compact)
        for sequence, request in requests for position in range(len(request.prompt)))
    model = _Model(params, plans, memory or MemoryTiming())
    if model.reader:
        model.rest()
    return model.run(prompts, sum(request.tokens for _, request in requests))


def steady_uses(
    params: CoreParams, plans: Sequence[StagePlan], *, sampled: bool = False,
    memory: MemoryTiming | None = None,
) -> Counter[tuple[Stage | None, Use]]:
    """Cycles of ``STEADY_TOKENS`` tokens of every sequence in steady state: ``uses`` of
    :class:`CoreCycles` while all of them generate."""
    temperature = 1.0 if sampled else 0.0
    asked = [(number, Request((0,), tokens=3 * STEADY_TOKENS, temperature=temperature))
             for number in range(params.sequences)]
    found = run_cycles(params, plans, asked, memory)
    # Away from both ends, where some sequences are idle.
    own = found.tokens[0]
    return found.uses(own[-2 * STEADY_TOKENS], own[-STEADY_TOKENS])


def cycles_per_token(
    params: CoreParams, plans: Sequence[StagePlan], *, sampled: bool = False,
    memory: MemoryTiming | None = None,
) -> Fraction:
    """Cycles per token in steady state, over all sequences, while all of them generate."""
    uses = steady_uses(params, plans, sampled=sampled, memory=memory)
    return Fraction(uses.total(), STEADY_TOKENS * params.sequences)
