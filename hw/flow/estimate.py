"""Estimated FPGA resources of a core, fitted to synthesised cores."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from importlib.resources import files
from operator import itemgetter
from typing import Any

import numpy as np

from sterna.hw.core.cycles.memories import core_memories
from sterna.hw.core.cycles.model import cycles_per_token
from sterna.hw.core.image.program import place_stages
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.core.params.limits import Limits
from sterna.hw.fpga.families import style_for
from sterna.hw.fpga.family import FpgaFamily, FpgaTarget, Resource
from sterna.model.profile import NumericProfile
from sterna.model.quantized.plan import StagePlan

__all__ = [
    "MEASURED", "core_rams", "estimated", "fitted", "fitting", "fold", "has_room",
    "kind_of", "shape_of", "sizes_of"]

MEASURED = "measured.json"
"""LUTs, flip-flops and multipliers per block of some cores, from ``benchmarks/estimate.py``."""

_ROWS, _COLS = (1, 2, 4, 8, 16, 32), (8, 16, 32, 64, 128)
_LANES = ((0, False), (4, False), (1, True), (2, True))
"""Activations per cycle, 0 for the default, and whether a core is compact."""

_FULL = 0.9
"""Fraction of the LUTs that the estimate may use, as it can be off by a tenth."""

# Features that the area of a block grows with; _OTHERS for blocks not listed.
_GROWS_WITH = {
    "products": ("rows * cols", "rows * clusters", "one"),
    "norm": ("quant_lanes", "one"),
    "cells": ("cell_lanes", "log_sequences", "one"),
    "sampler": ("post_lanes", "one"),
    "post": ("post_lanes", "one"),
}
_OTHERS = ("post_lanes", "log_sequences", "one")


def kind_of(target: FpgaTarget, profile: NumericProfile, compact: bool) -> str:
    """Cores of one kind consist of the same parts and differ only in their number."""
    dsp = "" if target.available.get(Resource.DSP) else " without DSP"
    return f"{target.family.name}{dsp}, {profile.name}{', compact' * compact}"


def shape_of(params: CoreParams) -> dict[str, int]:
    """The sizes of a core that its logic grows with."""
    return {name: value for name, value in params.sizes.items()
            if type(value) is int and name != "port_bits"}


def fitted(
    kind: str, shape: Mapping[str, int], measured: Sequence[Mapping[str, Any]],
) -> np.ndarray:
    """LUTs, flip-flops and multipliers of a core, by a least-squares fit of each block to
    measured cores of its kind."""
    known = [each for each in measured if each["kind"] == kind]
    names = {name for each in known for name in each["blocks"]}
    total = np.zeros(3)
    for name in names:
        features = np.array([_features(name, each["shape"]) for each in known])
        areas = np.array([each["blocks"].get(name, (0, 0, 0)) for each in known], dtype=float)
        # Relative error, so that large cores do not dominate.
        weight = 1 / np.maximum(areas[:, :1], 1)
        found, *_ = np.linalg.lstsq(features * weight, areas * weight, rcond=None)
        total += np.maximum(_features(name, shape) @ found, 0)
    return total


def _features(block: str, shape: Mapping[str, int]) -> np.ndarray:
    values = {**shape, "one": 1, "log_sequences": math.log2(shape["sequences"]),
              "rows * cols": shape["rows"] * shape["cols"],
              "rows * clusters": shape["rows"] * shape["clusters"]}
    return np.array([values[name] for name in _GROWS_WITH.get(block, _OTHERS)], dtype=float)


def core_rams(params: CoreParams, family: FpgaFamily) -> Counter[str]:
    """Block RAMs of a core by content: exact where Yosys maps its queues to LUT RAM."""
    found = Counter[str]()
    for each in core_memories(params):
        found[each.held] += each.is_block * family.block_rams(each.depth, each.width)
    return found


def sizes_of(params: CoreParams) -> dict[str, Any]:
    """The sizes chosen by :func:`fold`, as command-line options."""
    found: dict[str, Any] = {"rows": params.rows, "cols": params.cols}
    if params.quant_lanes != replace(params, quant_lanes=0).quant_lanes:
        found["quant_lanes"] = params.quant_lanes
    if params.sequences > 1:
        found["sequences"] = params.sequences
    if params.compact:
        found["compact"] = True
    return found


def estimated(params: CoreParams, target: FpgaTarget) -> dict[Resource, int] | None:
    """Estimate the resources of a core on a target; block RAMs are exact on an ECP5.

    None if no core of its kind was measured.
    """
    logic = _logic(params, target)
    return logic and {**logic, Resource.BLOCK_RAM: core_rams(params, target.family).total()}


def _logic(params: CoreParams, target: FpgaTarget) -> dict[Resource, int] | None:
    kind, known = kind_of(target, params.profile, params.compact), _measured()
    if params.port_bits or all(each["kind"] != kind for each in known):
        return None
    lut, ff, dsp = map(float, fitted(kind, shape_of(params), known))
    lut += target.family.ff_alone * ff
    return {Resource.LUT: round(lut), Resource.FF: round(ff), Resource.DSP: round(dsp)}


@cache
def fold(
    limits: Limits, plans: tuple[StagePlan, ...], target: FpgaTarget, *, sequences: int = 1,
    lut: int | None = None, period: float | None = None,
) -> CoreParams | None:
    """Choose rows and columns of a core that is estimated to fit a target, in ``lut`` LUTs.

    With ``period``, the smallest core that takes at most that many cycles per token of all
    sequences together; otherwise the fastest. None if there is none.
    """
    # A token takes at least as many cycles as beats.
    found = [(area, sum(stage.words for stage in place_stages(plans, params)), params)
             for area, params in fitting(limits, target, sequences=sequences, lut=lut)]
    if period is not None:
        return next((params for _, beats, params in sorted(found, key=itemgetter(0))
                     if beats <= period and cycles_per_token(params, plans) <= period
                     and has_room(params, target)), None)
    best: tuple[tuple[Fraction, int], CoreParams] | None = None
    for area, beats, params in sorted(found, key=itemgetter(1)):
        if best is not None and beats >= best[0][0]:
            break
        cost = cycles_per_token(params, plans), area
        if (best is None or cost < best[0]) and has_room(params, target):
            best = cost, params
    return None if best is None else best[1]


def fitting(
    limits: Limits, target: FpgaTarget, *, sequences: int = 1, lut: int | None = None,
) -> list[tuple[int, CoreParams]]:
    """Cores with weights and estimated logic that fit a target in ``lut`` LUTs, with their LUTs;
    smallest first."""
    most = dict(target.available)
    if Resource.LUT in most:
        most[Resource.LUT] = int(_FULL * most[Resource.LUT])
    if lut is not None:
        most[Resource.LUT] = min(lut, most.get(Resource.LUT, lut))
    found = []
    for params in _candidates(limits, target, sequences):
        needed = _logic(params, target)
        if needed is not None and _weights_fit(params, target) and all(
                needed[each] <= most[each] for each in needed if each in most):
            found.append((needed[Resource.LUT], params))
    return sorted(found, key=itemgetter(0))


def has_room(params: CoreParams, target: FpgaTarget) -> bool:
    """Whether a target has enough block RAMs for a core; elaborates the core to count them."""
    available = target.available.get(Resource.BLOCK_RAM)
    return available is None or core_rams(params, target.family).total() <= available


def _weights_fit(params: CoreParams, target: FpgaTarget) -> bool:
    """Whether the block RAMs of a target have enough bits for the weights of a core."""
    available = target.available.get(Resource.BLOCK_RAM)
    wide, deep = target.family.ram_shapes[0]
    weights = 2 * params.rows * params.cols * params.most_weights
    return available is None or weights <= available * wide * deep


def _candidates(limits: Limits, target: FpgaTarget, sequences: int) -> Iterator[CoreParams]:
    for rows, cols, (lanes, compact) in itertools.product(_ROWS, _COLS, _LANES):
        if not 4 * rows <= cols <= 64 * rows:
            continue
        try:
            yield CoreParams(
                limits, rows, cols, sequences=sequences, quant_lanes=lanes, compact=compact,
                style=style_for(target))
        except ValueError:      # columns not divisible by the lanes
            continue


@cache
def _measured() -> Sequence[Mapping[str, Any]]:
    text = files(__package__).joinpath(MEASURED).read_text(encoding="utf-8")
    found: Sequence[Mapping[str, Any]] = json.loads(text)
    return found
