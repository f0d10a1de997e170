"""The report on a core before any synthesis: cycles, what bounds them, bits of memory.

What a part without latency or other parameters would gain is answered by the cycle model itself,
so what hides behind something else is not counted: a faster root gains nothing where its result
is not waited for.
"""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

from sterna.hw.oldcore.plan.core_params import MAX_SEQUENCES, CoreParams, program
from sterna.hw.oldcore.plan.core_units import CoreUnits
from sterna.hw.oldcore.plan.image import CoreImage
from sterna.hw.oldcore.timing.cycles import CoreTimings, CycleModel
from sterna.hw.oldcore.timing.steady_state import Cause, SteadyState, Token, steady_state
from sterna.model.quantized.sampling import EXP_TABLE

__all__ = [
    "PIPELINE", "Bound", "CycleReport", "alternatives", "cycle_report", "memory_bits",
    "shape_image", "tokens_per_second", "without"]


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
    """A core that can be built, with other parameters."""

    changes: dict[str, int]  #: what is different, by name of the parameter
    cycles_per_token: Fraction  #: cycles per token, all sequences together
    utilisation: float  #: fraction of cycles in which the array takes a beat

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


PIPELINE = (Cause.ARRAY, Cause.REQUANTIZE, Cause.UNIT)
"""Causes that are the latency of a pipeline."""


@dataclass(frozen=True, slots=True)
class CycleReport:
    """What the cycle model says of a core."""

    params: CoreParams  #: geometry of the core
    states: dict[Token, SteadyState]  #: where the cycles go, for each kind of token
    #: Cycles per generated token that each part would give back if it took no time, the most
    #: first; hidden latencies give back nothing. A gain of one part may depend on another, so
    #: they need not add up. Two sequences may fall into step less luckily without a part:
    #: then it is negative.
    won_back: dict[Bound, Fraction]
    choices: list[Alternative]  #: what other parameters would reach
    memory: MemoryBits  #: bits of every memory

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

    :func:`~sterna.hw.oldcore.timing.cycle_report.shape_image` gives one without a model.
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
