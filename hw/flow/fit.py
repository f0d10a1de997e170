"""Whether a design fits a device, and if not, what would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from sterna.hw.core.core_product import CORE
from sterna.hw.core.plan.core_params import CoreParams
from sterna.hw.core.timing.cycles import CycleModel
from sterna.hw.flow.estimate import estimate, part_rams
from sterna.hw.flow.synth_report import BlockArea, Usage
from sterna.hw.flow.target import TARGETS, FpgaTarget, Resource
from sterna.hw.units.mac.mac_product import MAC
from sterna.hw.units.spec import UnitSpec
from sterna.model.profile import C12

__all__ = ["FitError", "check_fit", "check_memories"]

_FULL = {Resource.LUT: 0.95, Resource.FF: 0.95}
"""Fraction of a resource that can be placed in practice; all of it elsewhere."""

_MODEL_PARTS = ("weights", "embedding", "issuer", "post")
"""Blocks with what the model is: in block RAM whatever else there is."""

_SURE = 1.05
"""An estimate beyond this is right: a model may have fewer bits in its embedding and biases."""


class FitError(ValueError):
    """The target has too little of something; the message has the numbers.

    ``report`` has what was found until then, if it came to that: the
    :class:`~sterna.hw.flow.synth_report.SynthReport` of a synthesised unit, the
    :class:`~sterna.hw.board.bitstream.Attempt` of a board's design.
    """

    def __init__(self, message: str, report: Any = None) -> None:
        super().__init__(message)
        self.report = report


def check_memories(
    spec: UnitSpec, params: Any, target: FpgaTarget, *,
    advice: Sequence[str] | None = None,
) -> None:
    """Refuse, before anything is built, weights that are clearly more than there is room for.

    Parameters
    ----------
    spec, params, target
        What is to be built. Only of a core it is known before what its weights take.
    advice
        Sentences on what fits, for whoever has no other target and no port for weights;
        None says what those would do.

    Raises
    ------
    FitError
        If what is read of the model alone is estimated to take more block RAMs than there are.
    """
    available = target.available.get(Resource.BLOCK_RAM)
    if available is None or spec is not CORE:
        return
    parts = part_rams(params, target.family)
    rams = {name: parts[name] for name in _MODEL_PARTS}
    needed = sum(rams.values())
    if needed <= _SURE * available:
        return
    found = Usage(Resource.BLOCK_RAM, needed, available, "estimate")
    said = _larger([found], target) if advice is None else []
    rest = replace(found, needed=needed - rams["weights"])
    if not params.external_weights:
        said.append(f"the weights alone take {rams['weights']:,}")
        if advice is not None:
            said += advice
        elif rest.needed <= available:
            said.append(f"with --external-weights {rest.needed:,} remain")
        else:
            said += [f"with --external-weights {rest.needed:,} remain and {text}"
                     for text in _larger([rest], target)]
    raise FitError(_message(spec.name, target, [found], "estimated before synthesis", said))


def check_fit(
    spec: UnitSpec, params: Any, target: FpgaTarget,
    usage: Sequence[Usage], blocks: Mapping[str, BlockArea],
) -> None:
    """Refuse a synthesised design that takes more than the target has.

    Raises
    ------
    FitError
        With what is needed and available of each resource, and the nearest configuration
        that is estimated to fit.
    """
    short = [each for each in usage
             if each.available is not None and each.needed > each.available]
    if not short:
        return
    advice = []
    if spec is CORE:
        nearest = _nearest(params, target, usage, blocks)
        advice.append(nearest or "no smaller core of the usual kind is estimated to fit")
    else:
        smaller = _smaller_unit(spec, params, usage)
        advice += [smaller] if smaller else []
    advice += _larger(usage, target)
    raise FitError(_message(spec.name, target, short, usage[0].tool, advice))


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A core that is estimated to fit."""

    params: CoreParams
    options: str
    needed: dict[Resource, int]


def _fits(needed: Mapping[Resource, int], target: FpgaTarget) -> bool:
    return all(needed.get(name, 0) <= _FULL.get(name, 1.0) * number
               for name, number in target.available.items())


def _smaller(params: CoreParams) -> Iterator[CoreParams]:
    """Cores of the same model with no more products per cycle, the largest first."""
    sizes = [
        (rows, cols, lanes)
        for rows in (1, 2, 4, 8, 16, 32) for cols in (4, 8, 16, 32, 64, 128, 256, 512)
        for lanes in (1, 2, 4, 8, 16, 32, 64, 128)
        if rows * cols <= params.rows * params.cols and cols <= params.widest
        and cols % rows == lanes % rows == cols % lanes == 0 and lanes <= params.quant_lanes]
    sizes.sort(key=lambda each: (each[0] * each[1], each[2], each[0]), reverse=True)
    for rows, cols, lanes in sizes:
        if (rows, cols, lanes) != (params.rows, params.cols, params.quant_lanes):
            # A style may have rules of its own.
            with suppress(ValueError):
                yield replace(params, rows=rows, cols=cols, quant_lanes=lanes)


_TRIED = 8
"""How many of the largest cores that fit are compared by their cycles."""


def _nearest(
    built: CoreParams, target: FpgaTarget, usage: Sequence[Usage],
    blocks: Mapping[str, BlockArea],
) -> str | None:
    """The fastest core that is estimated to fit, as a sentence; None if none does."""
    changes: list[tuple[str, Callable[[CoreParams], CoreParams]]] = [("", lambda each: each)]
    if not built.external_weights:
        changes.append((" --external-weights", lambda each: replace(each, external_weights=True)))
    if built.profile.name != C12.name:
        changes.append((" and a model in profile C12", lambda each: replace(each, profile=C12)))
    for words, change in changes:
        found = []
        for params in (change(each) for each in (built, *_smaller(built))):
            needed = estimate(params, built, target, usage, blocks)
            if _fits(needed, target):
                options = (f"--rows {params.rows} --cols {params.cols} --quant-lanes "
                           f"{params.quant_lanes}{words}")
                found.append(_Candidate(params, options, needed))
            if len(found) == _TRIED:
                break
        if found:
            cycles = [CycleModel(each.params).cycles_per_token() for each in found]
            best = min(range(len(found)), key=lambda index: cycles[index])
            numbers = ", ".join(f"{target.name_of(name)} {number:,}"
                                for name, number in found[best].needed.items())
            return (f"nearest that fits, estimated: {found[best].options} ({numbers}; "
                    f"{cycles[best]:,.0f} cycles per token)")
    return None


def _smaller_unit(spec: UnitSpec, params: Any, usage: Sequence[Usage]) -> str | None:
    """The largest unit of its kind that is estimated to fit, as a sentence.

    Area goes with lanes or with rows (an array: at the same columns); None for a unit that
    has neither, or none smaller.
    """
    name = next((name for name in ("lanes", "rows") if name in spec.sizes), None)
    if name is None:
        return None
    share = max(each.needed / max(_FULL.get(each.resource, 1.0) * each.available, 1e-9)
                for each in usage if each.available is not None)
    columns = f" --cols {params.cols}" if spec is MAC else ""
    size, smallest = getattr(params, name), None
    for fewer in range(size - 1, 0, -1):
        # A unit may have rules of its own: lanes that divide its channels, for example.
        with suppress(ValueError):
            replace(params, **{name: fewer})
            if fewer <= size / share:
                return f"nearest that fits, estimated: --{name} {fewer}{columns}"
            smallest = fewer
    if smallest is None:
        return None
    return f"not even --{name} {smallest}{columns} is estimated to fit"


def _larger(usage: Sequence[Usage], target: FpgaTarget) -> list[str]:
    """The next larger device that has enough of everything that was counted, if there is one."""
    name = target.larger
    while name is not None:
        larger = TARGETS[name]
        if _fits({each.resource: each.needed for each in usage}, larger):
            return [f"--target {name} has enough"]
        name = larger.larger
    return []


def _message(
    unit: str, target: FpgaTarget, short: Sequence[Usage], tool: str, advice: Sequence[str],
) -> str:
    numbers = ", ".join(
        f"{target.name_of(each.resource)} {each.needed:,} needed, {each.available:,} available"
        for each in short)
    sentences = "".join(f" {text[0].upper()}{text[1:]}." for text in advice)
    return f"{unit} does not fit {target.name}: {numbers} ({tool}).{sentences}"
