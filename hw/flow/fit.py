"""Whether a design fits a device, and if not, what would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sterna.hw.core.core_memories import core_memories
from sterna.hw.core.core_params import CoreParams
from sterna.hw.core.core_product import CORE
from sterna.hw.flow.synth_report import Usage
from sterna.hw.flow.synthesis import Family
from sterna.hw.flow.target import TARGETS, FpgaTarget, Resource
from sterna.hw.units.spec import Sizes, UnitSpec
from sterna.model.profile import C12, S16
from sterna.model.quantized import QuantizedModel

__all__ = [
    "FITTING", "FitError", "UsualSizes", "block_rams", "check_fit", "check_memories",
    "core_rams", "options_text", "usual_sizes", "what_fits"]

# Width and depth of a block RAM: each family's can trade one for the other.
_18_KBIT = ((36, 512), (18, 1024), (9, 2048), (4, 4096), (2, 8192), (1, 16384))
_SHAPES = {Family.ECP5: _18_KBIT, Family.XC7: _18_KBIT,
           Family.ICE40: ((16, 256), (8, 512), (4, 1024), (2, 2048))}


def block_rams(depth: int, width: int, family: Family) -> int:
    """Block RAMs of a memory, in the shape that takes the fewest.

    >>> block_rams(864, 2048, Family.ECP5), block_rams(256, 16, Family.ICE40)
    (114, 1)
    """
    return min(-(-width // wide) * -(-depth // deep) for wide, deep in _SHAPES[family])


def core_rams(params: CoreParams, family: Family) -> Counter[str]:
    """Block RAMs of a core by what they hold: exact where Yosys has LUT RAM for its queues."""
    found = Counter[str]()
    for each in core_memories(params):
        found[each.held] += each.is_block * block_rams(each.depth, each.width, family)
    return found


FITTING: Mapping[str, str] = MappingProxyType({
    "ice40-up5k": "micro", "ice40-hx8k": "micro", "ecp5-25k": "micro", "ecp5-85k": "tiny"})
"""A bundled model that fits a target, with the sizes chosen here."""


@dataclass(frozen=True, slots=True)
class UsualSizes:
    """Sizes that were chosen, and a sentence that says which and why."""

    sizes: Sizes
    reason: str


@dataclass(frozen=True, slots=True)
class _Tried:
    """Sizes of a core, and the logic it was counted to take, by profile.

    Logic follows from sizes and profile: a model's shape is in its memories, whose number is
    estimated from it.
    """

    sizes: Sizes
    logic: Mapping[str, Mapping[Resource, int]]


def _logic(lut: int, dsp: int) -> Mapping[Resource, int]:
    return MappingProxyType({Resource.LUT: lut, Resource.DSP: dsp})


_COMPACT = MappingProxyType({"rows": 1, "cols": 8, "quant_lanes": 1, "compact": True})
_USUAL = _Tried({}, {})         # on iCE40 its memories alone are too many
_USUAL_ECP5 = _Tried({}, {C12.name: _logic(13051, 39), S16.name: _logic(14244, 47)})
# Counted by `sterna synth` of micro (C12), and of a random model of its shape in S16.
_CANDIDATES: Mapping[str, tuple[_Tried, ...]] = MappingProxyType({
    "ecp5-85k": (_USUAL_ECP5,),
    "ecp5-25k": (_USUAL_ECP5, _Tried(
        MappingProxyType({"rows": 1, "cols": 64, "quant_lanes": 4}),
        {C12.name: _logic(4408, 20), S16.name: _logic(5187, 24)})),
    "ice40-up5k": (_USUAL, _Tried(_COMPACT, {
        C12.name: _logic(3802, 8), S16.name: _logic(4380, 14)})),
    "ice40-hx8k": (_USUAL, _Tried(_COMPACT, {
        C12.name: _logic(6166, 0), S16.name: _logic(10709, 0)})),
})


def usual_sizes(model: QuantizedModel, spec: UnitSpec, target: FpgaTarget) -> UsualSizes | None:
    """Choose the sizes of a unit for a target.

    The first core of the target's list that the model has room in; of a unit alone, the sizes
    that it has in that core. None where the unit's own sizes are as good a guess as any: they fit,
    nothing does, or the target is a family of devices.
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
    own = usual_sizes(model, spec, target)
    if own is not None and spec.params_for(model, own.sizes) != spec.params_for(model, tried):
        return f" Without size options, sizes that fit are chosen: {options_text(own.sizes)}."
    if spec is not CORE:
        return ""
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

    >>> options_text({"rows": 1, "quant_lanes": 1, "trace": False, "compact": True})
    '--rows 1 --quant-lanes 1 --no-trace --compact'
    """
    words = []
    for name, value in sizes.items():
        option = name.replace("_", "-")
        if value is True or value is False:
            words.append(f"--{'' if value else 'no-'}{option}")
        else:
            words.append(f"--{option} {value}")
    return " ".join(words)


def _shortage(model: QuantizedModel, candidate: _Tried, target: FpgaTarget) -> str | None:
    """What a target has too little of for a core, in words; None if there is enough."""
    params = CORE.params_for(model, candidate.sizes)
    needed = {
        **candidate.logic.get(model.profile.name, {}),
        Resource.BLOCK_RAM: core_rams(params, target.family).total()}
    for resource, number in needed.items():
        available = target.available.get(resource)
        if available is not None and number > available:
            return (f"{target.name_of(resource)} {number:,} needed (estimated), {available:,} "
                    f"available")
    return None


def _of_part(spec: UnitSpec, core: Sizes) -> Sizes:
    """The sizes that a unit has in a core."""
    lanes = core["quant_lanes"] if "rows" in spec.sizes else core["rows"]
    wanted = {"rows": core["rows"], "cols": core["cols"], "lanes": lanes}
    return {name: value for name, value in wanted.items() if name in spec.sizes}


_FULL = {Resource.LUT: 0.95, Resource.FF: 0.95}
"""Fraction of a resource that can be placed in practice; all of it elsewhere."""

class FitError(ValueError):
    """The target has too little of something; the message has the numbers.

    ``report`` has what was found until then, if it came to that: a ``SynthReport`` of a unit, an
    ``Attempt`` of a board's design.
    """

    def __init__(self, message: str, report: Any = None) -> None:
        super().__init__(message)
        self.report = report


def check_memories(
    spec: UnitSpec, params: Any, target: FpgaTarget, *, advice: Sequence[str] | None = None,
) -> None:
    """Refuse, before anything is built, a core whose memories are more than there is room for.

    ``advice`` are sentences on what fits, for whoever has no other target and no port for weights;
    None says what those would do.
    """
    available = target.available.get(Resource.BLOCK_RAM)
    if available is None or spec is not CORE:
        return
    rams = core_rams(params, target.family)
    if rams.total() <= available:
        return
    found = Usage(Resource.BLOCK_RAM, rams.total(), available, "estimate")
    said = _larger([found], target) if advice is None else []
    if not params.port_bits:
        said.append(f"the weights alone take {rams['weights']:,}")
        said += advice if advice is not None else [
            "with --port-bits the model comes from a memory beside the device"]
    raise FitError(_message(spec.name, target, [found], "estimated before synthesis", said))


def check_fit(spec: UnitSpec, target: FpgaTarget, usage: Sequence[Usage]) -> None:
    """Refuse a synthesised design that takes more than the target has."""
    short = [each for each in usage
             if each.available is not None and each.needed > each.available]
    if short:
        raise FitError(_message(
            spec.name, target, short, usage[0].tool, _larger(usage, target)))


def _larger(usage: Sequence[Usage], target: FpgaTarget) -> list[str]:
    """The larger device, if there is one that has enough of everything that was counted."""
    if target.larger is None:
        return []
    available = TARGETS[target.larger].available
    enough = all(each.needed <= _FULL.get(each.resource, 1.0) * available[each.resource]
                 for each in usage)
    return [f"--target {target.larger} has enough"] if enough else []


def _message(
    unit: str, target: FpgaTarget, short: Sequence[Usage], tool: str, advice: Sequence[str],
) -> str:
    numbers = ", ".join(
        f"{target.name_of(each.resource)} {each.needed:,} needed, {each.available:,} available"
        for each in short)
    sentences = "".join(f" {text[0].upper()}{text[1:]}." for text in advice)
    return f"{unit} does not fit {target.name}: {numbers} ({tool}).{sentences}"
