"""Area and cycles of an emitted matrix or layer, from one call."""

from __future__ import annotations

from dataclasses import dataclass

from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.emit.tools import files_of
from sterna.hw.flow.cached_tools import CachedTools, Progress
from sterna.hw.flow.synth_report import BlockArea
from sterna.hw.flow.target import FpgaTarget, Resource, style_for, target_named
from sterna.hw.layers.layer_unit import LayerUnitParams
from sterna.hw.layers.matrix_unit import MatrixUnitParams
from sterna.model.cache import Cache, user_cache

__all__ = ["LayerCost", "layer_cost"]


@dataclass(frozen=True, slots=True)
class LayerCost:
    """What a unit takes on a target, and how long it works on a vector.

    Parameters
    ----------
    module
        Name of its Verilog module.
    target
        What it was synthesised for.
    area
        Cells by Yosys: LUTs (those of carries and LUT memory included), flip-flops, block
        memories and multipliers.
    latency
        Cycles from the first word of a vector taken to its last result offered, for each matrix
        (one for a layer), when nothing waits.
    period
        Cycles from one vector to the next, the same way.
    """

    module: str
    target: FpgaTarget
    area: BlockArea
    latency: tuple[int, ...]
    period: tuple[int, ...]

    def __str__(self) -> str:
        area = self.area
        used = ((area.lut, "LUTs", Resource.LUT), (area.ff, "flip-flops", Resource.FF),
                (area.block_ram, "block RAMs", Resource.BLOCK_RAM),
                (area.dsp, "multipliers", Resource.DSP))
        lines = [f"{self.module} on {self.target.name}: " + ", ".join(
            f"{number:,} {name}{self._share(number, resource)}"
            for number, name, resource in used)]
        lines += [
            f"{f'matrix {index}: ' * (len(self.period) > 1)}{latency:,} cycles from vector to "
            f"result, one vector every {period:,}"
            for index, (latency, period) in enumerate(
                zip(self.latency, self.period, strict=True))]
        return "\n".join(lines)

    def _share(self, number: int, resource: Resource) -> str:
        """Of what the device has, in per cent."""
        available = self.target.available.get(resource)
        return f" ({number / available:.0%})" if available and number else ""


def layer_cost(
    emitted: EmittedUnit, target: FpgaTarget | str = "ecp5-85k", *, cache: Cache | None = None,
    timeout_s: float = 7200, progress: Progress | None = None,
) -> LayerCost:
    """Synthesise what ``emit_matrix``, ``emit_layer``, ``emit_mlgru`` or ``emit_glu`` wrote.

    Parameters
    ----------
    emitted
        What one of them returned.
    target
        A target or its name, of the family of the unit's style.
    cache
        Where results are kept; None takes :func:`~sterna.model.cache.user_cache`.
    timeout_s
        Deadline in seconds of a run of Yosys.
    progress
        Is told what happens.

    Raises
    ------
    ValueError
        If there is no such target, it has not the cells of the unit's style, or it is another
        kind of unit.
    MissingToolError
        If Yosys is not installed.
    YosysError
        If it fails.
    """
    target = target_named(target) if isinstance(target, str) else target
    if not isinstance(emitted, EmittedUnit):
        raise ValueError(f"give what emit_matrix or emit_layer returned, got {emitted!r}")
    params = emitted.params
    if isinstance(params, MatrixUnitParams):
        engine, latency, period = params.engine, params.latencies, params.periods
    elif isinstance(params, LayerUnitParams):
        engine, latency, period = params.post.engine, (params.latency,), (params.period,)
    else:
        raise ValueError(
            f"layer_cost takes what emit_matrix or emit_layer returned, got {emitted.module}: "
            f"sterna.hw.flow.synth has the others")
    style_for(target, engine.mac.style.value)
    tools = CachedTools(
        target, cache if cache is not None else user_cache("synthesis"), timeout_s,
        progress or (lambda text, step: None), absorb=True, free_carries=True, multipliers=True)
    synthesis = tools.map(files_of(emitted.verilog_path), emitted.module).synthesis
    return LayerCost(
        emitted.module, target, BlockArea.of_cells(synthesis, synthesis.cells), latency, period)
