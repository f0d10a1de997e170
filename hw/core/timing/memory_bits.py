"""Bits of every memory of a core."""

from __future__ import annotations

from dataclasses import dataclass

from sterna.hw.core.plan.image import CoreImage
from sterna.hw.core.plan.params import CoreParams
from sterna.hw.core.plan.program import program
from sterna.hw.core.plan.units import CoreUnits
from sterna.model.quantized.sampling import EXP_TABLE

__all__ = ["MemoryBits", "memory_bits", "shape_image"]


@dataclass(frozen=True, slots=True)
class MemoryBits:
    """Bits of memory by what they hold: the model, tables copied for each lane, and working memory.

    Model (weights, biases, ...) and tables are read-only.
    """

    model: dict[str, int]
    tables: dict[str, int]
    working: dict[str, int]

    @property
    def total(self) -> int:
        """All bits."""
        return sum(sum(part.values()) for part in (self.model, self.tables, self.working))


def shape_image(params: CoreParams) -> CoreImage:
    """An image without a model: zeros in every memory, as wide as any model may need.

    Biases, shifts and embedding have all the bits that the profile allows; those of a
    trained model take fewer.
    """
    stages = program(params)
    profile = params.profile
    headers = sum(stage.headers for stage in stages)
    bias_bits = max(profile.bias_bits(name) for name in params.config.projections())
    return CoreImage(
        params, [0] * params.mac_cycles, [0] * headers, [0] * headers, bias_bits,
        tuple(range(1, profile.max_shift + 1)), [[(1 << profile.x.bits - 1) - 1]],
        profile.sigmoid_table(), [0] * len(stages))


def memory_bits(image: CoreImage) -> MemoryBits:
    """Bits of every memory of the core that holds an image.

    Without the port for weights; small memories are never less than two words deep.
    """
    params, profile = image.params, image.params.profile
    units = CoreUnits(params)
    norm, sampler = units.norm, units.sampler
    rows, sequences = params.rows, params.sequences

    rises = [high - low for low, high in zip(image.sigmoid, image.sigmoid[1:], strict=False)]
    rise_bits = max(max(rises).bit_length(), 1) if profile.sigmoid_step_bits else 0
    sigmoid = profile.sigmoid_segments * (profile.sigmoid_frac + rise_bits)

    return MemoryBits(
        model=image.memory_bits,
        tables={
            "sigmoid": 4 * rows * sigmoid,
            "reciprocals": norm.table_bits,
            "exponential": (sequences * rows * len(EXP_TABLE) * sampler.weight_bits
                            if params.sampling else 0),
        },
        working={
            "MLGRU state": units.mlgru.memory_words * rows * profile.h.bits,
            "residual stream": (sequences * units.residual.memory_words * rows
                                * profile.x.bits),
            "norm buffers": sequences * norm.banks * norm.depth * rows * norm.y_bits,
            "activation buffer": (max(params.tiles * sequences, 2) * params.cols
                                  * profile.act_bits),
            "sums": units.waiting_sums * params.mac.sum_layout.size,
            **({"logits": sequences * sampler.depth * rows * profile.logit.bits,
                "sums of probabilities": sequences * sampler.depth * sampler.total_bits}
               if params.sampling else {}),
            "waiting logits": (sequences * units.waiting_logits
                               * (rows * profile.logit.bits + 1)),
        })
