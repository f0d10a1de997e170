"""The sizes of a core that a target has room for, where nobody says any.

A table, in one place: the cores that are tried, with what each was counted to take of a target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sterna.hw.core.core_product import CORE
from sterna.hw.flow.estimate import part_rams
from sterna.hw.flow.target import TARGETS, FpgaTarget, Resource
from sterna.hw.units.spec import Sizes, UnitSpec
from sterna.model.profile import C12, S16
from sterna.model.quantized import QuantizedModel

__all__ = ["FITTING", "UsualSizes", "options_text", "usual_sizes", "what_fits"]

FITTING: Mapping[str, str] = MappingProxyType({
    "ice40-up5k": "micro", "ice40-hx8k": "micro", "ecp5-25k": "micro", "ecp5-85k": "tiny"})
"""A bundled model that fits a target, with the sizes chosen here."""

_RAM_SHARE = 1.15
"""Block RAMs as estimated may be so many times those there are: numbers have fewer bits in a
model than they may have. Of micro's core 33 are estimated, 29 counted."""


@dataclass(frozen=True, slots=True)
class UsualSizes:
    """Sizes that were chosen, and a sentence that says which and why."""

    sizes: Sizes
    reason: str


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Sizes of a core, and the logic it was counted to take, by profile.

    Logic follows from sizes and profile: a model's shape is in its memories, whose number is
    estimated from it.
    """

    sizes: Sizes
    logic: Mapping[str, Mapping[Resource, int]]


def _logic(lut: int, dsp: int) -> Mapping[Resource, int]:
    return MappingProxyType({Resource.LUT: lut, Resource.DSP: dsp})


_COMPACT = MappingProxyType({
    "rows": 1, "cols": 8, "quant_lanes": 1, "logits": False, "sampling": False, "compact": True})
_USUAL = _Candidate({}, {})         # on iCE40 its memories alone are too many
_USUAL_ECP5 = _Candidate({}, {C12.name: _logic(23902, 123), S16.name: _logic(27582, 155)})
# Counted by `sterna synth` of micro (C12), and of a random model of its shape in S16.
_CANDIDATES: Mapping[str, tuple[_Candidate, ...]] = MappingProxyType({
    "ecp5-85k": (_USUAL_ECP5,),
    "ecp5-25k": (_USUAL_ECP5, _Candidate(
        MappingProxyType({"rows": 1, "cols": 64, "quant_lanes": 4}),
        {C12.name: _logic(5415, 18), S16.name: _logic(5977, 22)})),
    "ice40-up5k": (_USUAL, _Candidate(_COMPACT, {
        C12.name: _logic(3952, 8), S16.name: _logic(4629, 14)})),
    "ice40-hx8k": (_USUAL, _Candidate(_COMPACT, {
        C12.name: _logic(6255, 0), S16.name: _logic(10844, 0)})),
})


def usual_sizes(model: QuantizedModel, spec: UnitSpec, target: FpgaTarget) -> UsualSizes | None:
    """Choose the sizes of a unit for a target.

    The first core of the target's list that the model has room in; of a unit alone, the
    sizes that it has in that core. Where no core has room, each unit keeps its own.

    Parameters
    ----------
    model, spec, target
        What is to be built.

    Returns
    -------
    UsualSizes or None
        None where the unit's own sizes are as good a guess as any: they fit, nothing does, or
        the target is a family of devices.
    """
    candidates = _CANDIDATES.get(target.name, ())
    short = [_shortage(model, each, target) for each in candidates]
    if None not in short or short[0] is None:
        return None
    core = candidates[short.index(None)].sizes
    sizes = core if spec is CORE else _of_part(spec, core)
    origin = "" if spec is CORE else ", as in a core that fits"
    usual = CORE.sizes
    return UsualSizes(sizes, (
        f"sizes chosen for {target.name}: {options_text(sizes)}{origin}; the usual core of "
        f"{usual['rows']} x {usual['cols']} does not fit: {short[0]}"))


def what_fits(
    model: QuantizedModel, spec: UnitSpec, target: FpgaTarget, tried: Sizes,
) -> str:
    """Sentences on what fits where a unit does not: other sizes, targets, or another model.

    ``tried`` are the sizes that do not fit, without the style: they are not advised again.
    """
    if spec is not CORE:
        return ""
    own = usual_sizes(model, spec, target)
    if own is not None and CORE.params_for(model, own.sizes) != CORE.params_for(model, tried):
        return f" Without sizes those are taken that fit: {options_text(own.sizes)}."
    text = ""
    larger = _larger_with_room(model, target)
    if larger is not None:
        text += f" The next larger device with room for a core of this model: --target {larger}."
    if target.name in FITTING:
        text += (f" A bundled model that fits: sterna synth {FITTING[target.name]} "
                 f"--target {target.name}.")
    return text


def _larger_with_room(model: QuantizedModel, target: FpgaTarget) -> str | None:
    """The next larger target with a core that has room for a model; None if there is none."""
    size = {name: TARGETS[name].available[Resource.LUT] for name in _CANDIDATES}
    return next((
        name for name in sorted(size, key=lambda each: size[each])
        if size[name] > target.available.get(Resource.LUT, 0)
        and any(_shortage(model, each, TARGETS[name]) is None for each in _CANDIDATES[name])), None)


def options_text(sizes: Sizes) -> str:
    """Sizes as the options of the command line that choose them.

    >>> options_text({"rows": 1, "quant_lanes": 1, "logits": False, "compact": True})
    '--rows 1 --quant-lanes 1 --no-logits --compact'
    """
    words = []
    for name, value in sizes.items():
        option = name.replace("_", "-")
        if value is True or value is False:
            words.append(f"--{'' if value else 'no-'}{option}")
        else:
            words.append(f"--{option} {value}")
    return " ".join(words)


def _shortage(model: QuantizedModel, candidate: _Candidate, target: FpgaTarget) -> str | None:
    """What a target has too little of for a core, in words; None if there is enough."""
    params = CORE.params_for(model, candidate.sizes)
    needed = {
        **candidate.logic.get(model.profile.name, {}),
        Resource.BLOCK_RAM: sum(part_rams(params, target.family).values())}
    for resource, number in needed.items():
        available = target.available.get(resource)
        most = _RAM_SHARE if resource is Resource.BLOCK_RAM else 1
        if available is not None and number > most * available:
            return (f"{target.name_of(resource)} {number:,} needed (estimated), {available:,} "
                    f"available")
    return None


def _of_part(spec: UnitSpec, core: Sizes) -> Sizes:
    """The sizes that a unit has in a core."""
    lanes = core["quant_lanes"] if "rows" in spec.sizes else core["rows"]
    wanted = {"rows": core["rows"], "cols": core["cols"], "lanes": lanes}
    return {name: value for name, value in wanted.items() if name in spec.sizes}
