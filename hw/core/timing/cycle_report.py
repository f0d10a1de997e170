"""The report on a core before any synthesis: cycles, what bounds them, bits of memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from sterna.hw.core.plan.image import CoreImage
from sterna.hw.core.plan.params import CoreParams
from sterna.hw.core.timing.cycles import CycleModel
from sterna.hw.core.timing.memory_bits import MemoryBits, memory_bits
from sterna.hw.core.timing.steady_state import Cause, SteadyState, Token, steady_state
from sterna.hw.core.timing.what_if import Alternative, Bound, alternatives, without

__all__ = ["PIPELINE", "CycleReport", "cycle_report", "tokens_per_second"]

PIPELINE = (Cause.ARRAY, Cause.REQUANTIZE, Cause.UNIT)
"""Causes that are the latency of a pipeline."""


@dataclass(frozen=True, slots=True)
class CycleReport:
    """What the cycle model says of a core.

    Parameters
    ----------
    params
        Geometry of the core.
    states
        Where the cycles go, for each kind of token.
    won_back
        Cycles per generated token that each part would give back if it took no time, the
        most first; hidden latencies give back nothing. A gain of one part may depend on
        another, so they need not add up. Two sequences may fall into step less luckily
        without a part: then it is negative.
    choices
        What other parameters would reach.
    memory
        Bits of every memory.
    """

    params: CoreParams
    states: dict[Token, SteadyState]
    won_back: dict[Bound, Fraction]
    choices: list[Alternative]
    memory: MemoryBits

    @property
    def greedy(self) -> SteadyState:
        """Where the cycles of a generated token go."""
        return self.states[Token.GREEDY]

    @property
    def limit(self) -> str:
        """What bounds the cycles: the beats of the array, or else the costliest part."""
        if 2 * self.greedy.waits() <= self.greedy.cycles_per_token:
            return "array beats"
        return next(iter(self.won_back)).value

    @property
    def ideal(self) -> int:
        """Cycles per token if every part but the array took no time."""
        return self.params.mac_cycles

    def as_dict(self, clock_mhz: float | None = None) -> dict[str, Any]:
        """Plain data, for JSON; a figure that depends on a clock is tagged as estimated."""
        params = self.params
        data: dict[str, Any] = {
            "config": params.config.to_json(), "profile": params.profile.name,
            "rows": params.rows, "cols": params.cols, "sequences": params.sequences,
            "quant_lanes": params.quant_lanes, "digit_bits": params.digit_bits,
            "root_digit_bits": params.root_digit_bits,
            "mac_cycles": params.mac_cycles,
            "cycles_per_token": {
                token.value: _number(state.cycles_per_token)
                for token, state in self.states.items()},
            "utilisation": {
                token.value: state.utilisation for token, state in self.states.items()},
            "stages": [_stage_data(self.greedy, name, params.sequences)
                       for name in self.greedy.names],
            "waits": {cause.value: _number(self.greedy.waits(cause=cause)) for cause in Cause},
            "limit": self.limit,
            "won_back_if_free": {
                bound.value: _number(cycles) for bound, cycles in self.won_back.items()},
            "alternatives": [
                {"changes": choice.changes,
                 "cycles_per_token": _number(choice.cycles_per_token),
                 "utilisation": choice.utilisation} for choice in self.choices],
            "memory_bits": {**asdict(self.memory), "total": self.memory.total},
        }
        if clock_mhz is not None:
            data["estimated"] = {
                "clock_mhz": clock_mhz,
                "tokens_per_second": {
                    token.value: tokens_per_second(state, clock_mhz)
                    for token, state in self.states.items()},
            }
        return data


def cycle_report(image: CoreImage) -> CycleReport:
    """Report on the core that holds an image.

    :func:`~sterna.hw.core.timing.memory_bits.shape_image` gives an image where there is no model.
    """
    params = image.params
    model = CycleModel(params)
    states = {token: steady_state(model, token) for token in Token}
    total = states[Token.GREEDY].cycles_per_token
    bounds = [bound for bound in Bound if bound is not Bound.NORM or params.sequences > 1]
    gains = {bound: total - steady_state(without(params, bound)).cycles_per_token
             for bound in bounds}
    in_order = sorted(gains, key=lambda bound: gains[bound], reverse=True)
    return CycleReport(
        params, states, {bound: gains[bound] for bound in in_order}, alternatives(params),
        memory_bits(image))


def tokens_per_second(state: SteadyState, clock_mhz: float) -> float:
    """Tokens per second of all sequences together.

    Raises
    ------
    ValueError
        If the clock is not a positive number.
    """
    if not 0 < clock_mhz < float("inf"):
        raise ValueError(f"the clock must be a positive number of MHz, got {clock_mhz}")
    return clock_mhz * 1e6 / float(state.cycles_per_token)


def _stage_data(state: SteadyState, name: str, sequences: int) -> dict[str, Any]:
    return {
        "name": name, "beats": _number(state.beats_of(name)),
        "waits": {cause.value: _number(state.waits(name=name, cause=cause)) for cause in Cause
                  if state.waits(name=name, cause=cause)},
        "waits_by_sequence": [
            _number(state.waits(name=name, sequence=sequence)) for sequence in range(sequences)],
        "cycles": _number(state.beats_of(name) + state.waits(name=name)),
    }


def _number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)
