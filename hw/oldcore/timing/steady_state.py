"""What the array waits for, cycle by cycle, while one token follows another.

The cycle model tells when everything happens. Here the cycles without a beat are told
apart: the array takes stages in a fixed order, so a cycle without a beat waits for the
stage that comes next, and the sequence of that stage is doing one thing at a time.
"""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from sterna.hw.core.core_params import StageKind
from sterna.hw.core.request import Request
from sterna.hw.oldcore.plan.core_params import Stage
from sterna.hw.oldcore.timing.cycles import CycleModel, StageTimes, TokenTimes

__all__ = [
    "CHOICE", "EMBEDDING", "Cause", "FoldedStages", "SteadyState", "Token", "fold_stages",
    "folded_name", "runs_alike", "stage_name", "steady_state"]

EMBEDDING, CHOICE = "embedding", "sampling"
"""What a token does before and after its stages."""


class Cause(enum.StrEnum):
    """What a sequence does while its next stage has no beats yet."""

    EMBEDDING = "embedding"
    """Its vector is read."""
    MAXIMUM = "maximum"
    """The largest element of a vector is found."""
    NORM = "norm"
    """The norm is busy with the other sequence."""
    RECIPROCAL = "reciprocal"
    """The norm divides by the maximum."""
    TILES = "tiles"
    """The first tile of the quantised vector, or a further one, is not complete."""
    ARRAY = "array"
    """The last sums go through the adder tree."""
    SCALE = "scale"
    """The sums are there, and wait for root and division; or for the sums before them."""
    REQUANTIZE = "requantise"
    """The last results are scaled and rounded."""
    UNIT = "unit"
    """They go through the MLGRU unit, the GLU unit, or the sum of the residual stream."""
    CHOICE = "sampling"
    """The next token is chosen, or taken from the prompt."""


class Token(enum.StrEnum):
    """Which tokens follow each other."""

    GREEDY = "greedy"
    """Generated, each the most likely one."""
    SAMPLED = "sampled"
    """Generated at a temperature."""
    PROMPT = "prompt"
    """Of a prompt, without prediction."""


@dataclass(frozen=True, slots=True)
class SteadyState:
    """Cycles between tokens of the same kind, once they repeat; ``tokens`` were counted in all.

    The array has ``beats`` by name of the stage. The other cycles are ``idle``: by sequence,
    name of the stage (or ``embedding``, ``sampling``) and cause.
    """

    tokens: int
    beats: dict[str, int]
    idle: dict[tuple[int, str, Cause], int]

    @property
    def cycles_per_token(self) -> Fraction:
        """Cycles per token, all sequences together."""
        return Fraction(sum(self.beats.values()) + sum(self.idle.values()), self.tokens)

    @property
    def utilisation(self) -> float:
        """Fraction of cycles in which the array takes a beat."""
        return sum(self.beats.values()) / (self.tokens * float(self.cycles_per_token))

    @property
    def names(self) -> list[str]:
        """Names of the stages, what comes before and after them included, in order."""
        return [EMBEDDING, *self.beats, CHOICE]

    def beats_of(self, name: str) -> Fraction:
        """Beats of a stage per token."""
        return Fraction(self.beats.get(name, 0), self.tokens)

    def waits(
        self, *, name: str | None = None, cause: Cause | None = None,
        sequence: int | None = None,
    ) -> Fraction:
        """Cycles per token without a beat: those of a stage, a cause, a sequence, or all."""
        cycles = sum(
            count for (of, at, why), count in self.idle.items()
            if name in (None, at) and cause in (None, why) and sequence in (None, of))
        return Fraction(cycles, self.tokens)


@dataclass(frozen=True, slots=True)
class _Activity:
    """What a sequence does up to cycle ``end``, from the end of the activity before."""

    end: int
    name: str
    cause: Cause


def stage_name(stage: Stage) -> str:
    """A short name of a stage: its layer and matrices.

    >>> from sterna.hw.oldcore.plan.core_params import CoreParams
    >>> from sterna.hw.oldcore.plan.core_params import program
    >>> from sterna.model.config import ModelConfig
    >>> from sterna.model.profile import S16
    >>> [stage_name(stage) for stage in program(CoreParams(ModelConfig.named("nano"), S16))[:3]]
    ['layer0 f c g', 'layer0 out', 'layer0 gate up']
    """
    layer, _, _ = stage.projections[0].rpartition(".")
    parts = " ".join(name.rpartition(".")[2] for name in stage.projections)
    return f"{layer.partition('.')[0]} {parts}".strip()


def steady_state(model: CycleModel, token: Token = Token.GREEDY) -> SteadyState:
    """Let tokens follow each other until they repeat, and say where their cycles go.

    With one sequence the second token is like all that follow. Two sequences first fall
    into step, and then repeat every few tokens.
    """
    sequences = model.params.sequences
    count = 5 if sequences == 1 else 16
    while True:
        times = model.run([[_request(token, count)]] * sequences)
        found = _window(model, times)
        if found is not None:
            return _account(model, times, *found)
        count *= 2


def _request(token: Token, count: int) -> Request:
    if token is Token.PROMPT:
        return Request((0,) * count, predict=(False,) * count)
    return Request((0,), count, temperature=1.0 if token is Token.SAMPLED else 0.0)


def _window(model: CycleModel, times: list[TokenTimes]) -> tuple[int, int] | None:
    """The last cycles in which the array did the same as just before, from the first beat of a
    token of sequence 0 to that of another; None if it did not. The last tokens are left out: one
    sequence may be done before the other.
    """
    starts = [token.stages[0].first_beat for token in times if token.sequence == 0]
    starts = starts[1:len(starts) - 1 if model.params.sequences == 1 else -2]
    signatures = []
    for start, end in itertools.pairwise(starts):
        signatures.append([
            (token.sequence, stage.index, *(moment - start for moment in (
                stage.service, stage.first_beat, stage.last_beat, stage.scales)))
            for token in times for stage in token.stages if start <= stage.first_beat < end])
    for period in range(1, len(signatures) // 2 + 1):
        if signatures[-period:] == signatures[-2 * period:-period]:
            return starts[-1 - period], starts[-1]
    return None


def _account(model: CycleModel, times: list[TokenTimes], begin: int, end: int) -> SteadyState:
    """Tell the cycles from ``begin`` to ``end`` apart."""
    sequences = model.params.sequences
    names = [stage_name(stage) for stage in model.stages]
    activities = [
        list(_activities(model, [token for token in times if token.sequence == sequence]))
        for sequence in range(sequences)]
    position = [0] * sequences
    used = [stage.index for token in times for stage in token.stages]
    beats = {names[index]: 0 for index in sorted(set(used))}
    idle: dict[tuple[int, str, Cause], int] = {}

    def wait(sequence: int, name: str, cause: Cause, first: int, last: int) -> None:
        cycles = min(last, end) - max(first, begin)
        if cycles > 0:
            key = (sequence, name, cause)
            idle[key] = idle.get(key, 0) + cycles

    in_order = sorted(
        ((stage, token.sequence) for token in times for stage in token.stages),
        key=lambda pair: pair[0].first_beat)
    free = 0
    for stage, sequence in in_order:
        # The array waits from ``free`` on: go through what the sequence does meanwhile.
        mine = activities[sequence]
        while free < stage.first_beat:
            while mine[position[sequence]].end <= free:
                position[sequence] += 1
            activity = mine[position[sequence]]
            until = min(activity.end, stage.first_beat)
            wait(sequence, activity.name, activity.cause, free, until)
            free = until
        name, count = names[stage.index], model.stages[stage.index].beats
        if begin <= stage.first_beat < end:
            beats[name] += count
            gaps = stage.last_beat + 1 - stage.first_beat - count
            wait(sequence, name, Cause.TILES, stage.first_beat, stage.first_beat + gaps)
        free = stage.last_beat + 1
    # Cycles that repeat hold whole tokens.
    tokens, rest = divmod(
        sum(beats.values()), sum(model.stages[names.index(name)].beats for name in beats))
    assert rest == 0
    return SteadyState(tokens, beats, idle)


def _activities(model: CycleModel, tokens: list[TokenTimes]) -> Iterator[_Activity]:
    """What a sequence does, one thing after the other."""
    timings = model.timings
    for token in tokens:
        read = token.request + timings.embedding
        summed = read + timings.residual
        yield _Activity(token.request, CHOICE, Cause.CHOICE)
        yield _Activity(read, EMBEDDING, Cause.EMBEDDING)
        yield _Activity(summed, EMBEDDING, Cause.UNIT)
        yield _Activity(summed + timings.maximum, EMBEDDING, Cause.MAXIMUM)
        for times in token.stages:
            yield from _of_stage(model, times, times is token.stages[-1])


def _of_stage(model: CycleModel, times: StageTimes, final: bool) -> Iterator[_Activity]:
    timings, stage = model.timings, model.stages[times.index]
    name = stage_name(stage)
    yield _Activity(times.service, name, Cause.NORM)
    yield _Activity(times.service + timings.reciprocal, name, Cause.RECIPROCAL)
    yield _Activity(times.first_beat - timings.feed, name, Cause.TILES)
    yield _Activity(times.first_beat, name, Cause.ARRAY)
    # While its beats last the array does not wait, save for tiles.
    yield _Activity(times.last_beat + 1, name, Cause.TILES)
    yield _Activity(times.last_beat + timings.array, name, Cause.ARRAY)
    yield _Activity(times.last_result - timings.requantize, name, Cause.SCALE)
    yield _Activity(times.last_result, name, Cause.REQUANTIZE)
    if stage.kind is not StageKind.HEAD:
        done = times.last_result + timings.unit(stage.kind)
        yield _Activity(done, name, Cause.UNIT)
        if not final:
            yield _Activity(done + timings.maximum, name, Cause.MAXIMUM)


_LAYER = re.compile(r"layer(\d+) (.+)")


@dataclass(frozen=True, slots=True)
class FoldedStages:
    """A line of a table or a drawing: a stage, or layers that are as one shown before."""

    name: str  # of the stage; `layers 1 to 3` for those left out
    stages: tuple[str, ...]  # names of the stages that it stands for
    layers: int = 0  # how many layers are left out here; 0 for a stage
    like: int | None = None  # the layer that they are like; None for a stage


def runs_alike(signatures: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return first and last position of each run of equal signatures.

    >>> runs_alike(["a", "b", "b", "b", "a"])
    [(0, 0), (1, 3), (4, 4)]
    """
    runs: list[tuple[int, int]] = []
    for _, run in itertools.groupby(range(len(signatures)), key=lambda at: signatures[at]):
        places = list(run)
        runs.append((places[0], places[-1]))
    return runs


def folded_name(first: int, last: int) -> str:
    """What layers that are left out are called.

    >>> folded_name(1, 3), folded_name(2, 2)
    ('layers 1 to 3', 'layer 2')
    """
    return f"layer {first}" if first == last else f"layers {first} to {last}"


def fold_stages(state: SteadyState) -> list[FoldedStages]:
    """Return the lines of a table of stages: a layer like the one before is not told again.

    Layers are alike if each of their stages has the same beats, and the same waits for the
    same causes and sequences.
    """
    layers: dict[int, dict[str, str]] = {}
    for name in state.names:
        if found := _LAYER.fullmatch(name):
            layers.setdefault(int(found[1]), {})[found[2]] = name
    signatures = [
        tuple((part, state.beats.get(name, 0), tuple(sorted(
            (sequence, cause, cycles) for (sequence, at, cause), cycles in state.idle.items()
            if at == name))) for part, name in stages.items())
        for stages in layers.values()]
    lines = [FoldedStages(name, (name,)) for name in state.names if not _LAYER.fullmatch(name)]
    told: list[FoldedStages] = []
    for first, last in runs_alike(signatures):
        told += [FoldedStages(name, (name,)) for name in layers[first].values()]
        if last > first:
            left_out = tuple(name for layer in range(first + 1, last + 1)
                             for name in layers[layer].values())
            told.append(FoldedStages(folded_name(first + 1, last), left_out, last - first, first))
    return [lines[0], *told, *lines[1:]]
