"""What the rows of a comparison take in gateware, where there is gateware for them."""

from __future__ import annotations

from typing import Any

from sterna.hw.core.plan.core_params import CoreParams
from sterna.hw.core.timing.cycle_report import memory_bits, shape_image
from sterna.hw.core.timing.cycles import CycleModel
from sterna.model.config import ModelConfig
from sterna.model.profile import S16

__all__ = ["core_costs"]


def core_costs(config: ModelConfig) -> dict[str, Any]:
    """Cycles per generated token and bits of memory of the core of a shape, profile S16, with the
    array that ``sterna report`` takes by default."""
    params = CoreParams(config, S16)
    memory = memory_bits(shape_image(params))
    return {"array": f"{params.rows} x {params.cols}",
            "cycles_per_token": CycleModel(params).cycles_per_token(),
            "state_bits": memory.working["MLGRU state"], "memory_bits": memory.total}
