"""Check whether a design fits a device, and advise on alternatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.core.params.limits import Limits
from sterna.hw.core.product.core_product import CORE
from sterna.hw.flow.estimate import core_rams, estimated, fitting, fold, has_room, sizes_of
from sterna.hw.flow.synth_report import Usage
from sterna.hw.fpga.families import TARGETS, style_for
from sterna.hw.fpga.family import FpgaTarget, Resource
from sterna.hw.layers.network_product import NETWORK
from sterna.hw.units.spec import Sizes, UnitSpec
from sterna.model.quantized import QuantizedModel

__all__ = [
    "FitError", "UsualSizes", "check_fit", "check_memories", "options_text",
    "usual_sizes", "what_fits"]

@dataclass(frozen=True, slots=True)
class UsualSizes:
    """Chosen sizes, and a sentence that gives them and the reason."""

    sizes: Sizes
    reason: str


def usual_sizes(model: QuantizedModel, spec: UnitSpec, target: FpgaTarget) -> UsualSizes | None:
    """Choose the sizes of a unit for a target.

    For a core, the fastest that is estimated to fit; for a single unit, its sizes in that core.
    None to keep the default sizes: they fit, nothing does, or the target is a device family.
    A network has small sizes for a family of small devices.
    """
    if spec is NETWORK:
        small = target.family.small
        return UsualSizes(small, f"small sizes were chosen for {target.family.description}: "
                                 f"{options_text(small)}") if small else None
    usual = CORE.params_for(model, {"style": style_for(target)})
    short = _shortage(usual, target)
    chosen = None if short is None else fold(usual.limits, model.stages, target)
    if chosen is None:
        return None
    core = sizes_of(chosen)
    sizes = core if spec is CORE else _of_part(spec, chosen)
    origin = "" if spec is CORE else ", as in a core that fits"
    return UsualSizes(sizes, (
        f"sizes chosen for {target.name}: {options_text(sizes)}{origin}; the usual core of "
        f"{usual.rows} x {usual.cols} does not fit: {short}"))


def what_fits(
    model: QuantizedModel, spec: UnitSpec, target: FpgaTarget, tried: Sizes,
) -> str:
    """Advise what fits instead of a unit: other sizes, another target, or another model.

    ``tried`` are the sizes that do not fit, without the style; they are not suggested again.
    """
    own = usual_sizes(model, spec, target)
    if own is not None and spec.params_for(model, own.sizes) != spec.params_for(model, tried):
        return f" Without size options, sizes that fit are chosen: {options_text(own.sizes)}."
    if spec is not CORE:
        return ""
    def size(each: FpgaTarget) -> int:
        return each.available.get(Resource.LUT, 0)

    limits, text = Limits.of(model), ""
    # Devices of the same family first.
    larger = next((
        each for each in sorted(TARGETS.values(), key=lambda each: (
            each.family is not target.family, size(each)))
        if size(each) > size(target)
        and any(has_room(core, each) for _, core in fitting(limits, each)[:3])), None)
    if larger is not None:
        text = (f" The next larger device with room for a core of this model: "
                f"--target {larger.name}.")
    if target.fitting is not None:
        text += (f" A bundled model that fits: sterna synth {target.fitting} "
                 f"--target {target.name}.")
    return text


def options_text(sizes: Sizes) -> str:
    """Sizes as command-line options.

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


def _shortage(params: CoreParams, target: FpgaTarget) -> str | None:
    """The resource that a target lacks for a core, in words; None if no shortage is known."""
    needed = estimated(params, target) or {
        Resource.BLOCK_RAM: core_rams(params, target.family).total()}
    for resource, number in needed.items():
        available = target.available.get(resource)
        if available is not None and number > available:
            return (f"{target.name_of(resource)} {number:,} needed (estimated), {available:,} "
                    f"available")
    return None


def _of_part(spec: UnitSpec, core: CoreParams) -> Sizes:
    """The sizes of a unit in a core."""
    lanes = core.quant_lanes if "rows" in spec.sizes else core.cell_lanes
    wanted = {"rows": core.rows, "cols": core.cols, "lanes": lanes}
    return {name: value for name, value in wanted.items() if name in spec.sizes}


class FitError(ValueError):
    """The target lacks resources; the message has the numbers.

    ``report`` has the results so far, if any: a ``SynthReport`` of a unit, an ``Attempt`` of a
    board's design.
    """

    def __init__(self, message: str, report: Any = None) -> None:
        super().__init__(message)
        self.report = report


def check_memories(
    spec: UnitSpec, params: Any, target: FpgaTarget, *, advice: Sequence[str] | None = None,
) -> None:
    """Reject a core whose memories do not fit, before anything is built.

    ``advice`` are sentences on what fits, for callers without other targets or a weight port;
    None advises on those.
    """
    available = target.available.get(Resource.BLOCK_RAM)
    if available is None or spec is not CORE:
        return
    rams = core_rams(params, target.family)
    if rams.total() <= available:
        return
    found = Usage(Resource.BLOCK_RAM, rams.total(), available, "estimate")
    said: list[str] = []
    if not params.port_bits:
        said.append(f"the weights alone take {rams['weights']:,}")
        said += advice if advice is not None else [
            "with --port-bits the model comes from a memory beside the device"]
    raise FitError(_message(spec.name, target, [found], "estimated before synthesis", said))


def check_fit(
    name: str, target: FpgaTarget, usage: Sequence[Usage], advice: Sequence[str] = (),
) -> None:
    """Reject a synthesised design that needs more than the target has.

    ``advice`` are sentences on what fits.
    """
    short = [each for each in usage
             if each.available is not None and each.needed > each.available]
    if short:
        raise FitError(_message(name, target, short, usage[0].tool, advice))


def _message(
    name: str, target: FpgaTarget, short: Sequence[Usage], tool: str, advice: Sequence[str] = (),
) -> str:
    numbers = ", ".join(
        f"{target.name_of(each.resource)} {each.needed:,} needed, {each.available:,} available"
        for each in short)
    sentences = "".join(f" {text[0].upper()}{text[1:]}." for text in advice)
    return f"{name} does not fit {target.name}: {numbers} ({tool}).{sentences}"
