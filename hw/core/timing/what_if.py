"""What a core would gain: from a part that took no time, and from parameters of another value.

Both are answered by the cycle model itself, so what hides behind something else is not
counted: a faster root gains nothing where its result is not waited for.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from sterna.hw.core.plan.params import MAX_STREAMS, CoreParams
from sterna.hw.core.timing.cycles import CycleModel
from sterna.hw.core.timing.steady_state import Token, steady_state

__all__ = ["Alternative", "Bound", "alternatives", "without"]


class Bound(enum.StrEnum):
    """A part that costs cycles besides the beats of the array."""

    RECIPROCAL = "reciprocal"
    """The division by the maximum, before a vector can be quantised."""
    QUANTISER = "quantiser"
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


class _Changed:
    """An object of which some attributes are others."""

    def __init__(self, original: Any, **changes: Any) -> None:
        self._original = original
        self.__dict__.update(changes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


_LONG_AGO = -(1 << 40)


def without(params: CoreParams, bound: Bound) -> CycleModel:
    """A cycle model in which a part takes no time.

    Not for building: no parameters give such a core.
    """
    model = CycleModel(params)
    units: Any = model.units
    norm = units.norm
    if bound is Bound.RECIPROCAL:
        units.norm = _Changed(norm, first_chunk_steps=0)
    elif bound is Bound.QUANTISER:
        units.norm = _Changed(norm, chunks=lambda columns: 0)
    elif bound is Bound.SCALE:
        units.norm = _Changed(norm, scale_steps=-units.scale_latency)
    elif bound is Bound.MAXIMUM:
        units.norm = _Changed(norm, max_steps=0)
    elif bound is Bound.NORM:
        units.norm = _Changed(norm, idle_steps=_LONG_AGO)
    elif bound is Bound.PIPELINE:
        # The cycle of its last beat remains: that is the array's work.
        mac: Any = _Changed(params.mac, latency=1)
        changed: Any = _Changed(params, mac=mac)
        model.params = changed
        units.requantise_latency = 0
        for name in ("mlgru", "glu", "residual"):
            setattr(units, name, _Changed(getattr(units, name), latency=0))
    elif bound is Bound.SAMPLING:
        # Not even the cycle that hands the token on.
        units.sampler = _Changed(units.sampler, greedy_steps=-1, sampled_steps=-1)
    else:
        units.embedding = _Changed(
            units.embedding, latency=1 - units.embedding.words, request_spacing=0)
    return model


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


def alternatives(params: CoreParams, token: Token = Token.GREEDY) -> list[Alternative]:
    """Cores that differ in one parameter, or in all that shorten latencies."""
    faster = {"quant_lanes": params.cols, "root_digit_bits": 4}
    candidates: list[dict[str, int]] = [
        *({name: value} for name, value in faster.items()), faster,
        {"streams": MAX_STREAMS}, {"rows": 2 * params.rows}, {"cols": 2 * params.cols}]
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
        state = steady_state(CycleModel(changed), token)
        found.append(Alternative(changes, state.cycles_per_token, state.utilisation))
    return found
