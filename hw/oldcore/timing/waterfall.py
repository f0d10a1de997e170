"""One token from unit to unit: which of them works when, stage by stage."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from sterna.hw.core.core_params import StageKind
from sterna.hw.core.request import Request
from sterna.hw.oldcore.timing.cycles import CycleModel, StageTimes, TokenTimes
from sterna.hw.oldcore.timing.steady_state import CHOICE, EMBEDDING, runs_alike, stage_name

__all__ = ["Span", "Waterfall", "Worker", "waterfall"]


class Worker(enum.StrEnum):
    """What works on a token, in the order in which its values pass."""

    EMBEDDING = "embedding"
    """Reads the token's vector."""
    NORM = "norm"
    """Finds the maximum, divides by it, quantises."""
    SCALE = "root and scale"
    """The root of the sum of squares, and the scales of the stage."""
    ARRAY = "array"
    """From its first beat until its last sums leave."""
    REQUANTIZE = "requantise"
    """Sums to results, from the first to the last."""
    UNIT = "MLGRU, GLU or residual"
    """The unit that a stage's results go through."""
    SAMPLER = "sampler"
    """Chooses the next token."""


@dataclass(frozen=True, slots=True)
class Span:
    """Cycles ``begin`` to ``end``, the latter excluded, in which a unit works for a stage.

    Counted from the cycle in which the token goes to the embedding.
    """

    stage: str
    worker: Worker
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Waterfall:
    """All spans of a token, and what repeats in them."""

    cycles: int  # from the token's request to that of the next
    layers: tuple[int, ...]  # first cycle of each layer, and of what follows the last
    spans: tuple[Span, ...]  # in the order of the stages
    # first and last layer of each run whose spans are the same, counted from where the layer
    # begins
    alike: tuple[tuple[int, int], ...]


def waterfall(model: CycleModel) -> Waterfall:
    """Follow a generated token of sequence 0 through the core, once tokens repeat.

    What another sequence does in between is not in it.
    """
    count = 12
    times = model.run([[Request((0,), count)]] * model.params.sequences)
    tokens = [token for token in times if token.sequence == 0]
    # In the middle of the run: neither the first tokens nor those beside a finished sequence.
    token, following = tokens[count // 2], tokens[count // 2 + 1]
    spans = _spans(model, token)
    parts = (len(model.stages) - 1) // model.params.config.layers
    begins = tuple(
        token.stages[index].service - token.request
        for index in range(0, len(model.stages), parts))
    names = [stage_name(stage) for stage in model.stages]
    signatures = []
    for layer, begin in enumerate(begins[:-1]):
        mine = names[layer * parts:(layer + 1) * parts]
        signatures.append(tuple(
            (mine.index(span.stage), span.worker, span.begin - begin, span.end - begin)
            for span in spans if span.stage in mine))
    return Waterfall(
        following.request - token.request, begins, tuple(spans), tuple(runs_alike(signatures)))


def _spans(model: CycleModel, token: TokenTimes) -> list[Span]:
    timings, begin = model.timings, token.request
    read = timings.embedding
    summed = read + timings.residual
    spans = [
        Span(EMBEDDING, Worker.EMBEDDING, 0, read + 1),
        Span(EMBEDDING, Worker.UNIT, read + 1, summed + 1)]
    last_word = summed
    for times in token.stages:
        found = _of_stage(model, times, last_word + begin)
        spans += [Span(span.stage, span.worker, span.begin - begin, span.end - begin)
                  for span in found]
        last_word = spans[-1].end - 1
    final = token.stages[-1]
    spans.append(Span(CHOICE, Worker.SAMPLER, final.first_result - begin, token.done + 1 - begin))
    return spans


def _of_stage(model: CycleModel, times: StageTimes, last_word: int) -> list[Span]:
    """The spans of a stage whose vector was complete in cycle ``last_word``."""
    timings, stage = model.timings, model.stages[times.index]
    name = stage_name(stage)
    quantised = times.service + timings.reciprocal + timings.chunks[times.index]
    spans = [
        Span(name, Worker.NORM, last_word + 1, last_word + timings.maximum),
        Span(name, Worker.NORM, times.service, quantised),
        Span(name, Worker.SCALE, quantised, times.scales),
        Span(name, Worker.ARRAY, times.first_beat, times.last_beat + timings.array),
        Span(name, Worker.REQUANTIZE, times.first_result - timings.requantize,
             times.last_result + 1)]
    if stage.kind is not StageKind.HEAD:
        spans.append(Span(name, Worker.UNIT, times.first_result,
                          times.last_result + timings.unit(stage.kind) + 1))
    return spans
