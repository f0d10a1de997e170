"""Parameters of the units of a core: what the core builds them with, in one place."""

from __future__ import annotations

from sterna.hw.core.core_params import MAX_SLOTS
from sterna.hw.oldcore.plan.core_params import CoreParams
from sterna.hw.parts.requantize import RequantizeParams
from sterna.hw.units.embedding import EmbeddingParams
from sterna.hw.units.glu import GluParams
from sterna.hw.units.mlgru import MlgruParams
from sterna.hw.units.norm_params import NormParams
from sterna.hw.units.residual import ResidualParams
from sterna.hw.units.sampler import SamplerParams

__all__ = ["SCALE_HOLD", "CoreUnits", "scale_latency"]


class CoreUnits:
    """Parameters of every unit that follow from those of the core alone: the core builds its
    units with them, so that what is predicted of a core is what is made.

    >>> from sterna.model.config import ModelConfig
    >>> from sterna.model.profile import S16
    >>> CoreUnits(CoreParams(ModelConfig.named("tiny"), S16)).norm.first_chunk_steps
    9
    """

    def __init__(self, params: CoreParams) -> None:
        profile, config = params.profile, params.config
        self._shows_logits = params.logits
        self._feed_steps = params.feed_steps
        self.requantize_latency = RequantizeParams.latency + params.routing_registers
        self.scale_latency = scale_latency(params)
        self.mac = params.mac
        self.norm = NormParams(
            profile, params.rows, params.quant_lanes, params.widest, params.sequences,
            params.trace, params.digit_bits, params.root_digit_bits, params.routing_registers)
        self.glu = GluParams(
            profile, params.rows, params.sequences, params.trace, stalls=False,
            silu_table=params.silu_table, routing_registers=params.routing_registers)
        # Channels are filled up to whole words.
        self.mlgru = MlgruParams(
            profile, config.layers, params.words(config.d) * params.rows, params.rows,
            params.sequences, params.trace, spaced=False, stalls=False,
            routing_registers=params.routing_registers)
        self.residual = ResidualParams(
            profile, params.rows, config.d, spaced=False, stalls=False)
        # As wide as any model may need; see EmbeddingParams.for_table.
        self.embedding = EmbeddingParams(
            profile, params.rows, config.vocab, config.d, profile.x.bits, params.sequences,
            stalls=False)
        self.sampler = SamplerParams(
            profile, params.rows, config.vocab, params.sampling)

    @property
    def waiting_sums(self) -> int:
        """Groups of rows that may be between the issuer and the post-processor: the first is
        issued after the first tile of its vector, and taken at the latest when its scale is
        known, so many cycles after the last chunk. A group in the array and before it counts,
        too.
        """
        on_the_way = self._feed_steps + self.mac.latency
        return self.norm.scale_steps + self.scale_latency + 3 + on_the_way

    @property
    def logits_on_the_way(self) -> int:
        """Words of logits that may still come when their queue says that there is no room: the
        requantiser is full of them, and two cycles pass before a word shows.
        """
        return self.requantize_latency + 2

    @property
    def waiting_logits(self) -> int:
        """Words of the queue of logits that leave the core; there is none if they do not."""
        return 2 * self.logits_on_the_way if self._shows_logits else 0


SCALE_HOLD = MAX_SLOTS - 1
"""Cycles from V offered to V taken: the scales of the slots are made one after the other."""


def scale_latency(params: CoreParams) -> int:
    """Cycles from V to the first scale: product and rounding, and with ``routing_registers`` one
    for the way to the multiplier."""
    return 2 + params.routing_registers
