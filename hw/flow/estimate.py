"""What a core of other sizes would take, estimated from one that was built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sterna.hw.core.plan.core_params import CoreParams, program
from sterna.hw.core.plan.core_units import CoreUnits
from sterna.hw.flow.synth_report import BlockArea, Usage
from sterna.hw.flow.synthesis import Family
from sterna.hw.flow.target import FpgaTarget, Resource
from sterna.model.profile import C12

__all__ = ["block_rams", "estimate", "part_rams"]

# Width and depth of a block RAM: each family's can trade one for the other.
_SHAPES = {
    Family.ECP5: ((36, 512), (18, 1024), (9, 2048), (4, 4096), (2, 8192), (1, 16384)),
    Family.XC7: ((36, 512), (18, 1024), (9, 2048), (4, 4096), (2, 8192), (1, 16384)),
    Family.ICE40: ((16, 256), (8, 512), (4, 1024), (2, 2048)),
}
# What C12 takes of what S16 does, measured: `sterna synth` of a random model of d 16, dff 24 and
# vocabulary 32 in both profiles, --target ecp5-85k --rows 2 --cols 8.
_C12_SHARE = {Resource.LUT: 0.85, Resource.FF: 0.75, Resource.DSP: 0.84}


def block_rams(depth: int, width: int, family: Family) -> int:
    """Block RAMs of a memory, in the shape that takes the fewest.

    >>> block_rams(864, 2048, Family.ECP5), block_rams(256, 16, Family.ICE40)
    (114, 1)
    """
    return min(-(-width // wide) * -(-depth // deep) for wide, deep in _SHAPES[family])


def estimate(
    params: CoreParams, built: CoreParams, target: FpgaTarget, usage: Iterable[Usage],
    blocks: Mapping[str, BlockArea],
) -> dict[Resource, int]:
    """Estimate what a core takes from what a core of other sizes, which was built, takes.

    The area of each block of the one that was built is scaled by what that block is made
    for: an array by rows times columns, a norm by the elements it quantises per cycle,
    what works on the results by rows. The rest stays as it is. Block RAMs follow from depth
    and width of the memories.

    Parameters
    ----------
    params
        The core to estimate.
    built
        The one that was built.
    target
        What both are for.
    usage, blocks
        What was counted.
    """
    before = BlockArea()
    fields = {Resource.LUT: "lut", Resource.FF: "ff", Resource.DSP: "dsp"}
    scaled: dict[Resource, float] = dict.fromkeys(fields, 0.0)
    old_rams, new_rams = (part_rams(each, target.family) for each in (built, params))
    rams = 0.0
    for path, area in blocks.items():
        before += area
        ratio = _law(path, params) / _law(path, built)
        for resource, name in fields.items():
            scaled[resource] += getattr(area, name) * ratio
        part = path.partition(".")[0].rstrip("0123456789")
        if part == "weights":
            rams += new_rams["weights"]
        else:
            rams += area.block_ram * new_rams.get(part, 1) / max(old_rams.get(part, 1), 1)
    counted = {each.resource: each.needed for each in usage}
    result = {}
    for resource, name in fields.items():
        if resource in counted:
            # Tools count differently: what one has more than the other grows alike.
            total = getattr(before, name) or 1
            result[resource] = round(scaled[resource] * counted[resource] / total)
            if built.profile.name != C12.name == params.profile.name:
                result[resource] = round(result[resource] * _C12_SHARE[resource])
    if Resource.BLOCK_RAM in counted:
        result[Resource.BLOCK_RAM] = round(rams)
    return result


def part_rams(params: CoreParams, family: Family) -> dict[str, int]:
    """Block RAMs of the memories of each part whose size depends on the core's sizes."""
    units, profile, rows = CoreUnits(params), params.profile, params.rows
    headers = sum(stage.headers for stage in program(params))
    count_bits = params.widest.bit_length()
    bias_bits = max(profile.bias_bits(name) for name in params.config.projections())

    def rams(depth: int, width: int) -> int:
        return block_rams(depth, width, family)

    return {
        "weights": (0 if params.external_weights
                    else rams(params.mac_cycles, params.weight_bits)),
        "mlgru": rams(units.mlgru.memory_words, rows * profile.h.bits),
        "norm": params.sequences * units.norm.banks * rams(
            units.norm.depth, rows * units.norm.y_bits),
        **({"activations": rams(max(params.tiles * params.sequences, 2),
                                params.cols * profile.act_bits)}
           if params.block_activations else {}),
        "embedding": rams(units.embedding.depth, rows * profile.x.bits),
        "residual": params.sequences * rams(units.residual.memory_words, rows * profile.x.bits),
        "sampler": params.sequences * (
            rams(units.sampler.depth, rows * profile.logit.bits)
            + rams(units.sampler.depth, units.sampler.total_bits)),
        "issuer": rams(headers, rows * count_bits),
        "post": rams(headers, rows * bias_bits),
    }


def _law(path: str, params: CoreParams) -> float:
    """What the area of a block is proportional to."""
    part = path.partition(".")[0].rstrip("0123456789")
    if part == "array":
        return params.rows * params.cols
    if part == "activations":
        return params.cols
    if path in ("norm", "norm.scale"):
        return params.quant_lanes
    if part in ("mlgru", "glu", "post", "sampler", "residual", "embedding", "sums", "router",
                "weights") or path.startswith("norm.front"):
        return params.rows
    return 1
