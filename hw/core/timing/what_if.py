"""What a core would gain: from a part that took no time, and from parameters of another value.

Both are answered by the cycle model itself, so what hides behind something else is not
counted: a faster root gains nothing where its result is not waited for.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from sterna.hw.core.plan.params import MAX_SEQUENCES, CoreParams
from sterna.hw.core.timing.cycles import CycleModel
from sterna.hw.core.timing.steady_state import steady_state
from sterna.hw.core.timing.timings import CoreTimings

__all__ = ["Alternative", "Bound", "alternatives", "without"]


class Bound(enum.StrEnum):
    """A part that costs cycles besides the beats of the array."""

    RECIPROCAL = "reciprocal"
    """The division by the maximum, before a vector can be quantised."""
    QUANTIZER = "quantiser"
    """Its rate: the cycles in which a vector is quantised."""
    SCALE = "scale"
    """Root and division, before sums can be scaled."""
    PIPELINE = "pipeline"
    """The latencies of the array, of requantising and of the units."""
    MAXIMUM = "maximum"
    """The latency of the largest element."""
    NORM = "shared norm"
    """One norm for two sequences."""
    SAMPLING = "sampling"
    """The choice of a token."""
    EMBEDDING = "embedding"
    """The vector of a token."""


_LONG_AGO = -(1 << 40)


def without(params: CoreParams, bound: Bound) -> CycleModel:
    """A cycle model in which a part takes no time.

    Not for building: no parameters give such a core.
    """
    timings = CoreTimings.of(params)
    free: dict[Bound, dict[str, Any]] = {
        Bound.RECIPROCAL: {"reciprocal": 0},
        Bound.QUANTIZER: {"chunks": (0,) * len(timings.chunks)},
        # The first scale is there with the last chunk.
        Bound.SCALE: {"norm_scale": -timings.scale},
        Bound.MAXIMUM: {"maximum": 0},
        Bound.NORM: {"norm_idle": _LONG_AGO},
        # The cycle of the array's last beat remains: that is its work.
        Bound.PIPELINE: {"array": 1, "requantize": 0, "mlgru": 0, "glu": 0, "residual": 0},
        # Not even the cycle that hands the token on.
        Bound.SAMPLING: {"greedy": -1, "sampled": -1},
        Bound.EMBEDDING: {"embedding": 0, "embedding_spacing": 0},
    }
    return CycleModel(params, replace(timings, **free[bound]))


@dataclass(frozen=True, slots=True)
class Alternative:
    """A core that can be built, with other parameters.

    Parameters
    ----------
    changes
        What is different, by name of the parameter.
    cycles_per_token
        Cycles per token, all sequences together.
    utilisation
        Fraction of cycles in which the array takes a beat.
    """

    changes: dict[str, int]
    cycles_per_token: Fraction
    utilisation: float

    @property
    def name(self) -> str:
        """The changes in words."""
        return ", ".join(f"{name} {value}" for name, value in self.changes.items())


def alternatives(params: CoreParams) -> list[Alternative]:
    """Cores that differ in one parameter, or in all that shorten latencies."""
    faster = {"quant_lanes": params.cols, "root_digit_bits": 4}
    candidates: list[dict[str, int]] = [
        *({name: value} for name, value in faster.items()), faster,
        {"sequences": MAX_SEQUENCES}, {"rows": 2 * params.rows}, {"cols": 2 * params.cols}]
    found: list[Alternative] = []
    for candidate in candidates:
        changes = {name: value for name, value in candidate.items()
                   if getattr(params, name) != value}
        if not changes or changes in [each.changes for each in found]:
            continue
        if changes.get("cols", 0) > max(params.config.d, params.config.dff):
            continue        # columns that would never have work
        # More rows or columns come with the quantiser that is usual for them.
        resized = {"rows", "cols"} & changes.keys()
        lanes: dict[str, Any] = {"quant_lanes": 0} if resized else {}
        try:
            changed = replace(params, **(lanes | changes))
        except ValueError:
            continue
        state = steady_state(CycleModel(changed))
        found.append(Alternative(changes, state.cycles_per_token, state.utilisation))
    return found
