"""How long every part of a core takes: all that the cycle model knows of the units."""

from __future__ import annotations

from dataclasses import dataclass

from sterna.hw.core.plan.params import CoreParams
from sterna.hw.core.plan.program import StageKind, program
from sterna.hw.core.plan.units import SCALE_HOLD, CoreUnits

__all__ = ["CoreTimings"]

_TASK_STEPS = 2


@dataclass(frozen=True, slots=True)
class CoreTimings:
    """Latencies and spacings of the parts of a core, in cycles, in the order of a token.

    Those of a core that can be built come from :meth:`of`. ``dataclasses.replace`` answers
    what a core would gain from a part that is faster than any.

    Parameters
    ----------
    embedding
        From the request of a token to the last word of its vector.
    embedding_spacing
        From one request to the next.
    residual
        From a word of out, down or the embedding to the word of the residual stream.
    maximum
        From the last word of a vector to its maximum: the norm can begin.
    reciprocal
        From there to the first chunk of the quantised vector.
    chunks
        For each stage of the program the chunks of its vector, one a cycle.
    norm_scale
        From the last chunk to V, the norm's part of the scales.
    norm_idle
        From there to the cycle in which the norm can begin with another vector.
    scale
        From V to the first scale of the stage.
    task
        From the norm's beginning to its task at the head of an idle queue.
    feed
        From a beat issued to the beat taken by the array.
    fill
        Cycles in which the array stands still and loads activations into its tables.
    array
        From the last beat of a group of rows to its sums.
    requantize
        From sums and scales to results.
    mlgru, glu
        From a word of the last pre-activation to the word that the unit makes of it.
    greedy, sampled
        From the last logits to the token chosen.

    >>> from sterna.model.config import ModelConfig
    >>> from sterna.model.profile import S16
    >>> timings = CoreTimings.of(CoreParams(ModelConfig.named("tiny"), S16))
    >>> timings.mlgru, timings.glu, timings.sampled
    (11, 8, 89)
    """

    embedding: int
    embedding_spacing: int
    residual: int
    maximum: int
    reciprocal: int
    chunks: tuple[int, ...]
    norm_scale: int
    norm_idle: int
    scale: int
    task: int
    feed: int
    fill: int
    array: int
    requantize: int
    mlgru: int
    glu: int
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
