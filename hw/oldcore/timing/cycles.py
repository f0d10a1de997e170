"""The cycle model: when everything happens in the core, without simulating it.

A discrete-event model at the level of vectors. It knows each unit by its latencies and
spacings (:class:`CoreTimings`), follows every group of rows through array and post-processor, and
so predicts the cycle of every event exactly; ``tests/test_cycles.py`` holds it to the simulated
Verilog. Drivers and sinks of the core are taken to be always ready: a pause at a port costs what
the core waits for it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from sterna.hw.core.core_params import StageKind
from sterna.hw.core.request import Request
from sterna.hw.oldcore.plan.core_params import CoreParams, Stage, program
from sterna.hw.oldcore.plan.core_units import SCALE_HOLD, CoreUnits
from sterna.hw.oldcore.plan.request import check_sequences

__all__ = ["CoreTimings", "CycleModel", "StageTimes", "TokenTimes"]

_TASK_STEPS = 2


@dataclass(frozen=True, slots=True)
class CoreTimings:
    """Latencies and spacings of the parts of a core, in cycles, in the order of a token.

    Those of a core that can be built come from :meth:`of`. ``dataclasses.replace`` answers
    what a core would gain from a part that is faster than any.

    >>> from sterna.model.config import ModelConfig
    >>> from sterna.model.profile import S16
    >>> timings = CoreTimings.of(CoreParams(ModelConfig.named("tiny"), S16))
    >>> timings.mlgru, timings.glu, timings.sampled
    (11, 8, 89)
    """

    embedding: int  #: from the request of a token to the last word of its vector
    embedding_spacing: int  #: from one request to the next
    residual: int  #: from a word of out, down or the embedding to the word of the residual stream
    maximum: int  #: from the last word of a vector to its maximum: the norm can begin
    reciprocal: int  #: from there to the first chunk of the quantised vector
    chunks: tuple[int, ...]  #: for each stage of the program the chunks of its vector, one a cycle
    norm_scale: int  #: from the last chunk to V, the norm's part of the scales
    norm_idle: int  #: from there to the cycle in which the norm can begin with another vector
    scale: int  #: from V to the first scale of the stage
    task: int  #: from the norm's beginning to its task at the head of an idle queue
    feed: int  #: from a beat issued to the beat taken by the array
    fill: int  #: cycles in which the array stands still and loads activations into its tables
    array: int  #: from the last beat of a group of rows to its sums
    requantize: int  #: from sums and scales to results
    #: from a word of the last pre-activation to the word that the unit makes of it
    mlgru: int
    glu: int
    #: from the last logits to the token chosen
    greedy: int
    sampled: int

    @classmethod
    def of(cls, params: CoreParams) -> CoreTimings:
        """The timings of a core, as the parameters of its units state them."""
        units = CoreUnits(params)
        return cls(
            embedding=units.embedding.latency + units.embedding.words - 1,
            embedding_spacing=units.embedding.request_spacing,
            residual=units.residual.latency,
            maximum=units.norm.max_steps,
            reciprocal=units.norm.first_chunk_steps,
            chunks=tuple(units.norm.chunks(stage.columns) for stage in program(params)),
            norm_scale=units.norm.scale_steps,
            norm_idle=SCALE_HOLD + units.norm.idle_steps,
            scale=units.scale_latency,
            task=_TASK_STEPS,
            feed=params.feed_steps,
            fill=params.mac.fill_steps,
            array=params.mac.latency,
            requantize=units.requantize_latency,
            mlgru=units.mlgru.latency,
            glu=units.glu.latency,
            greedy=units.sampler.greedy_steps,
            sampled=units.sampler.sampled_steps)

    def unit(self, kind: StageKind) -> int:
        """Latency of the unit that results of a stage go through; those of a head leave."""
        return {StageKind.MLGRU: self.mlgru, StageKind.GLU: self.glu,
                StageKind.RESIDUAL: self.residual}[kind]


_REQUEST, _VECTOR, _SERVE = range(3)


@dataclass(slots=True)
class StageTimes:
    """Cycles of a stage.

    ``service``: the norm begins. ``first_beat``, ``last_beat``: of the array.
    ``scales``: from here on sums can be scaled. ``first_result``, ``last_result``: the first
    and the last word of results.
    """

    index: int
    service: int
    first_beat: int
    last_beat: int
    scales: int
    first_result: int
    last_result: int


@dataclass(slots=True)
class TokenTimes:
    """Cycles of a token.

    ``request``: it goes to the embedding. ``done``: the cycle in which its last word passes
    (no prediction), its last logits pass, or the token chosen after it is known.
    ``generates``: a token is chosen after it.
    """

    sequence: int
    request: int
    done: int = -1
    generates: bool = False
    stages: list[StageTimes] = field(default_factory=list)


@dataclass(slots=True)
class _Sequence:
    """Where a sequence stands."""

    requests: list[Request]     # the first one is in progress
    position: int = -1          # in its prompt
    generated: int = 0
    predict: bool = False
    token: TokenTimes | None = None


class CycleModel:
    """Predicts the cycles of a core.

    Parameters
    ----------
    params
        Geometry of the core.
    timings
        How long its parts take; None for those of the core that is built.

    >>> from sterna.model.config import ModelConfig
    >>> from sterna.model.profile import C12
    >>> model = CycleModel(CoreParams(ModelConfig.named("tiny"), C12))
    >>> model.cycles_per_token() >= model.params.mac_cycles
    True
    """

    def __init__(self, params: CoreParams, timings: CoreTimings | None = None) -> None:
        self.params = params
        self.timings = timings or CoreTimings.of(params)
        self.stages = program(params)

    def cycles_per_token(self, *, sampled: bool = False, tokens: int = 12) -> float:
        """Cycles per generated token in the long run, all sequences together.

        The last half of ``tokens`` tokens of each sequence is measured.
        """
        if tokens < 2:
            raise ValueError(f"tokens must be at least 2, got {tokens}")
        request = Request((0,), tokens, temperature=1.0 if sampled else 0.0)
        times = self.run([[request]] * self.params.sequences)
        spans = []
        for sequence in range(self.params.sequences):
            done = [t.done for t in times if t.sequence == sequence]
            spans.append((done[-1] - done[tokens // 2 - 1]) / (len(done) - tokens // 2))
        return max(spans) / self.params.sequences

    def utilisation(self, *, sampled: bool = False) -> float:
        """Fraction of cycles in which the array takes a beat."""
        return self.params.mac_cycles / self.cycles_per_token(sampled=sampled)

    def run(self, requests: Sequence[Sequence[Request]]) -> list[TokenTimes]:
        """Run requests, one list for each sequence; all are there from cycle 0.

        The model knows no values: which tokens a prompt has does not matter.

        Returns the tokens in the order in which they go to the embedding.

        Raises
        ------
        ValueError
            If there is not a list for each sequence, or a request has a stop token: when
            that comes is not known here.
        """
        check_sequences(self.params, requests)
        if any(request.stop_token is not None for queue in requests for request in queue):
            raise ValueError(
                "the cycle model cannot know when a stop token comes: "
                "ask for as many tokens as there were")
        return _Run(self, requests).run()


class _Feed:
    """What is between the issuer and the array; ``free`` is the first cycle in which the next
    beat can be issued. It stands still while the array loads fresh activations into its tables,
    if it has any.
    """

    def __init__(self, timings: CoreTimings) -> None:
        self._steps, self._fill = timings.feed, timings.fill
        self._stops: deque[int] = deque()      # first cycles of the last stops
        self.free = 0

    def issue(self, earliest: int, fresh: bool) -> tuple[int, int]:
        """Issue a beat; return the cycles in which it is issued and in which it is taken."""
        issue = self._moving(max(earliest, self.free))
        self.free = issue + 1
        beat = issue
        for _ in range(self._steps if self._fill else 0):
            beat = self._moving(beat + 1)
        if not self._fill:
            return issue, issue + self._steps
        if fresh:
            self._stops.append(beat)
            beat += self._fill
        return issue, beat

    def _moving(self, cycle: int) -> int:
        """Return the first cycle from ``cycle`` on in which nothing stands still."""
        # As many stops as there are steps may lie between a beat and the next to be issued.
        longest = self._steps * (self._fill + 1)
        while self._stops and self._stops[0] + self._fill <= cycle - longest:
            self._stops.popleft()
        for stop in self._stops:
            if stop <= cycle < stop + self._fill:
                cycle = stop + self._fill
        return cycle


class _Run:
    """One run of the model: the state of every shared unit is the cycle it is free again."""

    def __init__(self, model: CycleModel, requests: Sequence[Sequence[Request]]) -> None:
        self._params, self._timings, self._stages = model.params, model.timings, model.stages
        self._sequences = [_Sequence(list(queue)) for queue in requests]
        self._events: list[tuple[int, int, int]] = []
        self._tokens: list[TokenTimes] = []
        self._waiting: dict[int, int] = {}
        self._last_served = len(requests) - 1
        self._embedding_free = self._norm_free = 0
        self._post_free = 0
        self._feed = _Feed(self._timings)

    def run(self) -> list[TokenTimes]:
        for sequence in range(len(self._sequences)):
            self._next_from_prompt(sequence, 0)
        while self._events:
            time, kind, sequence = heapq.heappop(self._events)
            if kind == _REQUEST:
                self._embed(sequence, time)
            elif kind == _VECTOR:
                self._waiting[sequence] = time
                self._push(max(time, self._norm_free), _SERVE, sequence)
            else:
                self._serve(time)
        return self._tokens

    def _push(self, time: int, kind: int, sequence: int) -> None:
        heapq.heappush(self._events, (time, kind, sequence))

    def _next_from_prompt(self, sequence: int, time: int) -> None:
        """The control can take a token of a prompt in cycle ``time``."""
        state = self._sequences[sequence]
        state.position += 1
        if state.requests and state.position == len(state.requests[0].prompt):
            state.requests.pop(0)
            state.position = 0
        if state.requests:
            state.predict = state.requests[0].predicts_after(state.position)
            state.generated = 0
            self._push(time + 1, _REQUEST, sequence)

    def _embed(self, sequence: int, time: int) -> None:
        """The embedding is asked for a token."""
        if time < self._embedding_free:
            self._push(self._embedding_free, _REQUEST, sequence)
            return
        self._embedding_free = time + self._timings.embedding_spacing
        state = self._sequences[sequence]
        state.token = TokenTimes(sequence, time)
        self._tokens.append(state.token)
        self._vector(sequence, time + self._timings.embedding + self._timings.residual)

    def _vector(self, sequence: int, last_word: int) -> None:
        """The last word of a vector enters the norm."""
        self._push(last_word + self._timings.maximum, _VECTOR, sequence)

    def _serve(self, time: int) -> None:
        """The norm is free, perhaps, and begins with a vector."""
        if time < self._norm_free:
            for sequence in self._waiting:
                self._push(self._norm_free, _SERVE, sequence)
            return
        if not self._waiting:
            return
        sequence = next(iter(self._waiting))
        if len(self._waiting) > 1:
            sequence = 1 - self._last_served
        del self._waiting[sequence]
        self._last_served = sequence
        self._stage(sequence, time)

    def _stage(self, sequence: int, service: int) -> None:
        """A stage from the norm's service to the last word of its results."""
        timings = self._timings
        state = self._sequences[sequence]
        assert state.token is not None
        index = len(state.token.stages)
        stage = self._stages[index]

        first_chunk = service + timings.reciprocal
        chunks = timings.chunks[index]
        scale_taken = first_chunk + chunks - 1 + timings.norm_scale
        self._norm_free = scale_taken + timings.norm_idle
        scales = scale_taken + timings.scale
        tile_ready = [
            first_chunk + min((tile + 1) * self._params.chunks_per_tile, chunks) - 1
            for tile in range(stage.tiles)]

        # Beats: one is issued a cycle, once the task is there and with the last chunk of a
        # tile.
        feed = self._feed
        issue = max(feed.free, service + timings.task + 1) - 1
        first_beat = beat = first_result = -1
        result = max(self._post_free, service + timings.task + 1) - 1
        for header in range(stage.headers):
            for tile in range(stage.tiles):
                fresh = stage.tiles > 1 or first_beat < 0
                issue, beat = feed.issue(max(issue + 1, tile_ready[tile]), fresh)
                if first_beat < 0:
                    first_beat = beat
            # Its sums wait for the scales, and for the sums before them.
            result = max(result + 1, beat + timings.array, scales)
            if header == 0:
                first_result = result
        self._post_free = result + 1
        last_word = result + timings.requantize
        state.token.stages.append(
            StageTimes(index, service, first_beat, beat, scales,
                       first_result + timings.requantize, last_word))
        self._results(sequence, stage, last_word)

    def _results(self, sequence: int, stage: Stage, last_word: int) -> None:
        """What follows the last word of results of a stage."""
        state = self._sequences[sequence]
        assert state.token is not None
        if stage.kind is StageKind.HEAD:
            self._choose(sequence, last_word)
            return
        done = last_word + self._timings.unit(stage.kind)
        if len(state.token.stages) == self._params.stages - 1 and not state.predict:
            state.token.done = done
            self._next_from_prompt(sequence, done + 1)
        else:
            self._vector(sequence, done)

    def _choose(self, sequence: int, last_word: int) -> None:
        """After the last logits: a token is chosen, or the prompt goes on."""
        state = self._sequences[sequence]
        assert state.token is not None
        request = state.requests[0]
        if request.tokens == 0:
            state.token.done = last_word
            self._next_from_prompt(sequence, last_word + 1)
            return
        timings = self._timings
        chosen = last_word + (timings.sampled if request.temperature else timings.greedy)
        state.token.done, state.token.generates = chosen, True
        state.generated += 1
        if state.generated == request.tokens:
            self._next_from_prompt(sequence, chosen + 1)
        else:
            self._push(chosen + 1, _REQUEST, sequence)
