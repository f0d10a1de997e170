"""The report on a core before synthesis: cycles per token, their uses, bits of memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from sterna.hw.core.cycles.memories import memory_bits
from sterna.hw.core.cycles.model import STEADY_TOKENS, MemoryTiming, Use, steady_uses
from sterna.hw.core.image.program import Stage
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.core.params.limits import Limits
from sterna.hw.emit.verilog import no_collection
from sterna.model.config import ModelConfig
from sterna.model.profile import NumericProfile
from sterna.model.quantized.plan import StagePlan, plan
from sterna.model.quantized.records import language_model

__all__ = ["CycleReport", "TokenCycles", "check_clock", "cycle_report", "shape_limits",
           "shape_stages", "tokens_per_second"]

_SHIFTS = (10, 17)
"""Smallest and largest shift of the bundled models."""


def shape_limits(config: ModelConfig, profile: NumericProfile) -> Limits:
    """The limits of a model without weights: the widest embedding, and the shifts of the bundled
    models. No cycle count depends on either."""
    return Limits.of_stages(profile, [shape_stages(config, profile)], _SHIFTS, profile.x.bits)


def shape_stages(config: ModelConfig, profile: NumericProfile) -> tuple[StagePlan, ...]:
    """The stages of a language model of this shape."""
    return plan(language_model(config, profile), profile)


@dataclass(frozen=True, slots=True)
class TokenCycles:
    """Uses of the cycles of a token, or of a frame, with all sequences busy.

    ``stages``: cycles by use, for each kind of stage of a language model, summed over all layers,
    or for each stage of a network; ``token``, or ``frame``, is the time between two of them. A
    cycle is attributed to the one thing the array lacks, even if it would lack another next.
    """

    stages: dict[str, dict[Use, Fraction]]

    @classmethod
    def of(
        cls, params: CoreParams, plans: Sequence[StagePlan], memory: MemoryTiming | None = None, *,
        sampled: bool = False,
    ) -> TokenCycles:
        """Run the cycle model of a core."""
        counts = steady_uses(params, plans, sampled=sampled, memory=memory)
        return cls.of_uses(counts, STEADY_TOKENS * params.sequences, _name)

    @classmethod
    def of_uses(
        cls, counts: Mapping[tuple[Stage | None, Use], int], tokens: int,
        name: Callable[[Stage | None], str],
    ) -> TokenCycles:
        """Average counts over so many tokens; ``name`` gives the name of a stage."""
        stages: dict[str, dict[Use, Fraction]] = {}
        for (stage, use), cycles in sorted(counts.items(), key=lambda item: _place(item[0][0])):
            uses = stages.setdefault(name(stage), dict.fromkeys(Use, Fraction()))
            uses[use] += Fraction(cycles, tokens)
        return cls(stages)

    def spent(self, use: Use) -> Fraction:
        """Cycles of a use over all stages."""
        return sum((uses[use] for uses in self.stages.values()), start=Fraction())

    @property
    def total(self) -> Fraction:
        """Cycles per token."""
        return sum(map(self.spent, Use), start=Fraction())

    @property
    def utilisation(self) -> float:
        """Fraction of cycles in which the array has a beat."""
        return float(self.spent(Use.BEATS) / self.total)

    def stages_as_dict(self) -> dict[str, dict[str, float]]:
        """Plain data."""
        return {name: {use.value: _number(cycles) for use, cycles in uses.items()}
                for name, uses in self.stages.items()}

    @property
    def figures(self) -> dict[str, float]:
        """Plain data."""
        return {"cycles_per_token": _number(self.total), "utilisation": self.utilisation}


def _place(stage: Stage | None) -> float:
    return float("inf") if stage is None else stage.weight


def _name(stage: Stage | None) -> str:
    """Name of a stage by its matrices, without the layer: ``gate up``."""
    if stage is None:
        return "token"
    return " ".join(name.rpartition(".")[2] for name in stage.plan.matrices)


@dataclass(frozen=True, slots=True)
class CycleReport:
    """Cycle model results of a core, and of its variants: ``choices``, by the size changed."""

    params: CoreParams
    config: ModelConfig
    memory: MemoryTiming | None
    greedy: TokenCycles
    drawn: TokenCycles
    choices: dict[str, TokenCycles]
    memory_bits: dict[str, int]

    @property
    def tokens(self) -> dict[str, TokenCycles]:
        """Both kinds of tokens by name."""
        return {"greedy": self.greedy, "drawn": self.drawn}

    def as_dict(self, clock_mhz: float | None = None) -> dict[str, Any]:
        """Plain data, for JSON; a figure that depends on a clock is tagged as estimated."""
        data: dict[str, Any] = {
            "config": self.config.to_json(), "profile": self.params.profile.name,
            **self.params.sizes, "phases": self.params.phases,
            "memory": None if self.memory is None else {
                "latency": self.memory.latency, "words_per_cycle": float(self.memory.rate)},
            "cycles_per_token": {name: _number(each.total) for name, each in self.tokens.items()},
            "utilisation": {name: each.utilisation for name, each in self.tokens.items()},
            "stages": self.greedy.stages_as_dict(),
            "choices": {name: each.figures for name, each in self.choices.items()},
            "memory_bits": {**self.memory_bits, "total": sum(self.memory_bits.values())},
        }
        if clock_mhz is not None:
            data["estimated"] = {"clock_mhz": clock_mhz, "tokens_per_second": {
                name: tokens_per_second(each, clock_mhz) for name, each in self.tokens.items()}}
        return data


def cycle_report(
    params: CoreParams, config: ModelConfig, memory: MemoryTiming | None = None,
) -> CycleReport:
    """Report on a core that runs a model of this shape; ``memory`` is behind its port, if any."""
    if params.port_bits and memory is None:
        memory = MemoryTiming()
    plans = shape_stages(config, params.profile)
    with no_collection():
        return CycleReport(
            params, config, memory, TokenCycles.of(params, plans, memory),
            TokenCycles.of(params, plans, memory, sampled=True),
            {name: TokenCycles.of(changed, plans, memory)
             for name, changed in _changed(params).items()}, memory_bits(params))


def _changed(params: CoreParams) -> dict[str, CoreParams]:
    """Cores with one size changed, and the usual values for sizes derived from it."""
    sizes = [("sequences", count) for count in (2, 4)] + [
        (name, 2 * getattr(params, name))
        for name in ("rows", "cols", "quant_lanes", "post_lanes")]
    usual = {"phases": 0, "clusters": 0, "root_digit_bits": 0}
    lanes: dict[str, Any] = dict.fromkeys(("quant_lanes", "post_lanes", "cell_lanes"), 0)
    if replace(params, **lanes) == params:
        usual |= lanes
    found = {}
    for name, value in sizes:
        if value == getattr(params, name):
            continue
        try:
            found[f"{name} {value}"] = replace(params, **usual | {name: value})
        except ValueError:      # there is no such core
            continue
    return found


def check_clock(clock_mhz: float) -> None:
    """Raise ValueError unless a clock is above 0."""
    if not 0 < clock_mhz < float("inf"):
        raise ValueError(f"the clock must be a positive number of MHz, got {clock_mhz}")


def tokens_per_second(cycles: TokenCycles, clock_mhz: float) -> float:
    """Tokens per second over all sequences."""
    check_clock(clock_mhz)
    return clock_mhz * 1e6 / float(cycles.total)


def _number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)
