"""Emit user-defined ternary matrices and layers as folders of Verilog."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from sterna.hw.core.compute.trace import trace_extra
from sterna.hw.core.image.linear import IMAGE_FILE, image_text
from sterna.hw.core.image.program import ProgramImage, pack_program
from sterna.hw.core.params.limits import Limits, StageLimits
from sterna.hw.emit.folder import EmittedUnit, UnitDesign, emit_component
from sterna.hw.emit.names import check_name
from sterna.hw.layers.cycles import UnitCycles, unit_cycles
from sterna.hw.layers.documents import (
    layer_sections,
    layer_summary,
    layer_vectors,
    matrix_sections,
    matrix_summary,
    matrix_vectors,
)
from sterna.hw.layers.layer_params import FrameConstants, LayerParams
from sterna.hw.layers.units import LayerUnit, MatrixUnit
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.model.checks import check_whole, one_of
from sterna.model.files import check_path
from sterna.model.folder import check_replaceable
from sterna.model.layers import (
    BitLinearLayer,
    GluLayer,
    Layer,
    MatrixLayer,
    MlgruLayer,
    TernaryMatrix,
)
from sterna.model.layers.layer import LayerOrWeights, input_bits, layer_of, matrix_layer_of
from sterna.model.layers.matrix import Ternary
from sterna.model.profile import S16, FixedPoint, NumericProfile
from sterna.model.quantized import Projection
from sterna.model.quantized.plan import StageKind, StagePlan, plan
from sterna.model.quantized.records import Input

__all__ = [
    "emit_layer", "emit_matrix", "layer_component", "layer_design", "layer_image", "layer_params",
    "matrix_component", "plan_matrices", "sha256_of"]

_ROWS, _COLS, _LANES = 8, 128, 8
"""Default sizes; a smaller matrix gets a smaller array."""


def _sizes(
    shapes: Sequence[tuple[int, int]], rows: int | None, cols: int | None, lanes: int | None,
    style: str,
) -> dict[str, Any]:
    """Sizes for matrices of these shapes; None chooses a suitable one."""
    most_rows, most_columns = (max(sizes) for sizes in zip(*shapes, strict=True))
    if rows is None:
        rows = 1 << min(most_rows, _ROWS).bit_length() - 1
    check_whole("rows", rows, 1, most_rows)
    if lanes is None and cols is None:
        lanes = min(max(1 << (most_columns - 1).bit_length(), 2), _LANES)
    if lanes is not None:
        check_whole("lanes", lanes, 1, 256)
    unit = lanes or _LANES
    whole = -(-most_columns // unit) * unit
    if cols is None:
        cols = max(min(_COLS, whole) // unit, 1) * unit
    check_whole("cols", cols, 1, whole)
    return {"rows": rows, "cols": cols, "quant_lanes": lanes or 0,
            "style": one_of("style", style, ArrayStyle)}


def plan_matrices(
    layers: Sequence[MatrixLayer], *, rows: int | None = None, cols: int | None = None,
    lanes: int | None = None, style: str = "generic",
) -> tuple[LayerParams, ProgramImage]:
    if not layers:
        raise ValueError("there must be at least one matrix")
    formats = {None if each.requantization is None else each.requantization.output
               for each in layers}
    if len(formats) > 1:
        raise ValueError(f"all matrices must have one output format, got {list(formats)}")
    output, = formats
    shapes = [each.weight.shape for each in layers]
    sizes = _sizes(shapes, rows, cols, lanes, style)
    projections: list[Projection] = []
    for each in layers:
        numbers = each.requantization
        projections.append(
            Projection(each.weight, np.zeros(each.rows, dtype=np.int32), 0, 0) if numbers is None
            else Projection(each.weight, numbers.bias, numbers.k, numbers.shift))
    if output is None:
        output = FixedPoint(max(each.output_bits for each in layers), 0)
    limits = Limits(
        replace(S16, logit=output),
        tuple(StageLimits(StageKind.HEAD, 1, *shape) for shape in shapes),
        _shifts(projections), normalizes=False, requantizes=formats != {None})
    # Two vectors at a time: one is loaded while the other is multiplied.
    params = LayerParams(limits, sequences=2, **sizes)
    return params, _packed(params, [[each] for each in projections])


def layer_params(
    layer: Layer, *, rows: int | None = None, cols: int | None = None, lanes: int | None = None,
    style: str = "generic", **others: Any,
) -> LayerParams:
    """The parameters of a layer's unit, with the sizes of :func:`emit_layer`, and ``others`` of
    :class:`LayerParams`."""
    limits = _limits(layer)
    array = _sizes([(each.rows, each.columns) for each in limits.program], rows, cols, lanes, style)
    return LayerParams(limits, frame=_frame(layer), **array, **others)


def _limits(layer: Layer) -> Limits:
    profile = replace(layer.profile, logit=layer.output)
    if layer.input is not None and input_bits(profile) > profile.x.bits:
        raise ValueError(
            f"a layer that adds to its input takes the {profile.x.bits} bits of the residual "
            f"stream, and profile {profile.name} has vectors of {input_bits(profile)}")
    return Limits(
        profile, tuple(StageLimits(each.kind, len(each.matrices), each.rows, each.columns)
                       for each in _stages(layer, profile)),
        _shifts(list(layer.matrices().values())))


def _frame(layer: Layer) -> FrameConstants | None:
    first, vectors = layer.records()[0], layer.vectors()
    return FrameConstants(*(tuple(vectors[f"{first.name}.{part}"].tolist())
                            for part in ("offset", "shift"))) if isinstance(first, Input) else None


def layer_image(layer: Layer, params: LayerParams) -> ProgramImage:
    """The weights of a layer as the words of a unit's memories.

    Raises ValueError, naming the difference, if the unit does not fit this layer.
    """
    matrices, own, limits = layer.matrices(), _limits(layer), params.limits
    (low, high), shifts = limits.shifts, own.shifts
    for what, is_alike in (
        ("its layers", own.program == limits.program),
        ("its formats", own.profile == limits.profile),
        ("the scaling of its frames", _frame(layer) == params.frame),
        (f"its shifts, which are {low} to {high}", low <= shifts[0] and shifts[1] <= high),
    ):
        if not is_alike:
            raise ValueError(f"the unit was made for a network that differs in {what}")
    return _packed(params, [[matrices[name] for name in each.matrices]
                            for each in _stages(layer, params.limits.profile)])


def layer_design(layer: Layer, params: LayerParams, name: str) -> UnitDesign:
    """Design the folder of a layer; ``name`` is the module's.

    With ``port_bits`` it has the words of the memory behind the port, and no test.
    """
    cycles, image = unit_cycles(params), layer_image(layer, params)
    return UnitDesign(
        LayerUnit(params, image), name, derived=(), summary=layer_summary(layer, params),
        sections=layer_sections(layer, params, cycles[0]),
        extra={"layer": _described(layer), **_stated(cycles), **trace_extra(params)},
        extra_files={IMAGE_FILE: image_text(image)} if params.port_bits else {},
        vectors=None if params.port_bits else lambda emitted: layer_vectors(layer, emitted))


def _stages(layer: Layer, profile: NumericProfile) -> tuple[StagePlan, ...]:
    try:
        return plan(tuple(layer.records()), profile)
    except ValueError as error:
        raise ValueError(f"no unit computes these layers in this order: {error}") from error


def _shifts(projections: Sequence[Projection]) -> tuple[int, int]:
    shifts = [each.shift for each in projections]
    return min(shifts), max(shifts)


def _packed(params: LayerParams, parts: Sequence[Sequence[Projection]]) -> ProgramImage:
    named = {params.matrix_name(stage, slot): each
             for stage, part in enumerate(parts) for slot, each in enumerate(part)}
    return pack_program(params.placed, named, params)


def emit_matrix(
    weights: Ternary | MatrixLayer | Sequence[Ternary | MatrixLayer], folder: str | Path, *,
    output: FixedPoint | None = None, rows: int | None = None, cols: int | None = None,
    lanes: int | None = None, style: str = "generic", name: str = "ternary_matrix",
    axis: bool = False,
) -> EmittedUnit:
    """Write Verilog that multiplies int8 vectors by one or several ternary matrices.

    Stream ``acts`` in: ``q``, ``lanes`` signed 8-bit activations per word, a vector in
    ``ceil(columns / lanes)`` words. Stream ``sums`` out: ``sum``, some exact dot products per word,
    ``last`` with the last word of a vector. With ``output`` it is called ``results`` and has
    ``y``. With several matrices both have ``matrix``, the index.

    Parameters
    ----------
    weights
        -1, 0 and 1, ``[rows, columns]``; with a scale or a bias a ``TernaryMatrix``; or a list
        of such matrices of any shapes, which share one array.
    folder
        Where to write: Verilog, ports and fields in ``params.json``, a test, a README.
    output
        Format of the results, 2 to 23 bits: ``sum * scale + bias``, rounded half up and
        saturated; None for the sums.
    rows, cols
        Size of the array: rows side by side, a power of two, and columns per cycle; None for up
        to 8 x 128.
    lanes
        Activations per word of ``acts``, a power of two that divides ``cols``; None for up to 8.
    style
        Implementation of the array: ``generic``, ``ecp5-chain`` or ``xc7-pair``.
    name
        Name of the Verilog module.
    axis
        Whether to add a wrapper with AXI4-Stream ports.

    Returns
    -------
    The folder; its manifest has under ``cycles`` the latency and the period of each matrix.

    Raises
    ------
    ValueError
        If the weights are not ternary, a scale or bias has no output format, a size does not
        fit, or the folder is refused.
    OSError
        If the folder cannot be written.
    """
    check_path("folder", folder)
    check_replaceable(Path(folder))
    check_name(name)
    layers = _layers(weights, output)
    params, image = plan_matrices(layers, rows=rows, cols=cols, lanes=lanes, style=style)
    cycles = unit_cycles(params)
    design = UnitDesign(
        MatrixUnit(params, image), name, derived=(), summary=matrix_summary(params),
        sections=matrix_sections(params, cycles), extra=_stated(cycles),
        vectors=lambda emitted: matrix_vectors(layers, emitted))
    origin = {"matrices": [
        {"rows": each.rows, "columns": each.columns, "sha256": sha256_of(each.weight),
         "requantized": each.requantization is not None,
         "words_in": params.words_in(index, params.quant_lanes),
         "words_out": params.words_out(index)}
        for index, each in enumerate(layers)]}
    return emit_component(origin, design, folder, axis=axis)


def emit_layer(
    layer_or_weights: LayerOrWeights, folder: str | Path, *,
    profile: NumericProfile | str | None = None, output: FixedPoint | None = None,
    sequences: int = 1, rows: int | None = None, cols: int | None = None,
    lanes: int | None = None, style: str = "generic", compact: bool = False,
    port_bits: int = 0, name: str | None = None, axis: bool = False,
) -> EmittedUnit:
    """Write Verilog of a layer, or of a network of layers: norms and 8-bit quantisation, ternary
    matrices, scales and biases, and everything in between.

    Stream ``vectors`` in: ``x``, some signed channels per word in the bits of the widest vector of
    the profile (16 of S16, 12 of C12), or in 16 bits if an ``InputLayer`` is first; with an MLGRU
    also ``start``. Stream ``results`` out: ``y``, as many channels per word in format ``output``,
    and ``last``. With several sequences both have ``sequence``.

    Parameters
    ----------
    layer_or_weights
        The weights of a BitLinear, ``[rows, columns]`` or a ``TernaryMatrix``; or a layer of
        :mod:`sterna.model.layers`, such as a ``SequentialLayer`` of others. Residuals must not be
        nested. The states of MLGRUs are kept inside.
    folder
        Where to write.
    profile
        Numeric formats of a BitLinear from weights, or their name, None for S16; a layer has its
        own.
    output
        Format of its results, 2 to 23 bits; None for ``profile.z``.
    sequences
        Vectors processed together, each of a separate sequence, a power of two up to 64: with two
        or more, one half is normalised while the other is multiplied.
    rows, cols, lanes
        Size of the array, as for :func:`emit_matrix`, and elements quantised per cycle.
    style, axis
        As for :func:`emit_matrix`.
    compact
        For a small device: a norm that divides a bit per cycle, a table of silu where the formats
        allow one, short queues.
    port_bits
        Bits of a port to a memory with the weights, with its words in ``image.hex`` of the folder;
        0 for ROMs.
    name
        Name of the Verilog module; None for ``bitlinear``, ``mlgru``, ``glu`` or ``network``.

    Returns
    -------
    The folder; its manifest has under ``cycles`` the latency and the period.

    Raises
    ------
    ValueError
        If the weights are not ternary, the scale cannot be represented, formats are given for
        a layer, no unit supports the order of the layers, a size does not fit, or the folder is
        refused.
    OSError
        If the folder cannot be written.
    """
    check_path("folder", folder)
    check_replaceable(Path(folder))
    layer = _layer_with_norm(layer_or_weights, profile, output)
    params = layer_params(
        layer, sequences=sequences, rows=rows, cols=cols, lanes=lanes, style=style,
        compact=compact, port_bits=port_bits)
    name = _NAMES.get(type(layer), "network") if name is None else name
    check_name(name)
    return emit_component({}, layer_design(layer, params, name), folder, axis=axis)


def matrix_component(
    weights: Ternary | MatrixLayer | Sequence[Ternary | MatrixLayer], *,
    output: FixedPoint | None = None, rows: int | None = None, cols: int | None = None,
    lanes: int | None = None, style: str = "generic",
) -> MatrixUnit:
    """The Amaranth component that :func:`emit_matrix` writes, with the same arguments and
    errors::

        m.submodules.fc = fc = matrix_component(weights, rows=4)
        wiring.connect(m, fc.acts, ...)
    """
    return MatrixUnit(*plan_matrices(
        _layers(weights, output), rows=rows, cols=cols, lanes=lanes, style=style))


def layer_component(
    layer_or_weights: LayerOrWeights, *, profile: NumericProfile | str | None = None,
    output: FixedPoint | None = None, sequences: int = 1, rows: int | None = None,
    cols: int | None = None, lanes: int | None = None, style: str = "generic",
    compact: bool = False, port_bits: int = 0,
) -> LayerUnit:
    """The Amaranth component that :func:`emit_layer` writes, with the same arguments and errors."""
    layer = _layer_with_norm(layer_or_weights, profile, output)
    params = layer_params(
        layer, sequences=sequences, rows=rows, cols=cols, lanes=lanes, style=style,
        compact=compact, port_bits=port_bits)
    return LayerUnit(params, layer_image(layer, params))


def _layers(weights: Any, output: FixedPoint | None) -> list[MatrixLayer]:
    if not isinstance(weights, Sequence) or _is_rows(weights):
        return [matrix_layer_of(weights, output)]
    layers = []
    for index, each in enumerate(weights):
        try:
            layers.append(matrix_layer_of(each, output))
        except ValueError as error:
            raise ValueError(f"matrix {index}: {error}") from error
    return layers


def _layer_with_norm(
    layer_or_weights: LayerOrWeights, profile: NumericProfile | str | None,
    output: FixedPoint | None,
) -> Layer:
    layer = layer_of(layer_or_weights, profile=profile, output=output)
    if isinstance(layer, MatrixLayer):
        raise ValueError("a MatrixLayer has no norm: it is for emit_matrix and matrix_component")
    return layer


_NAMES: Mapping[type, str] = {BitLinearLayer: "bitlinear", MlgruLayer: "mlgru", GluLayer: "glu"}


def _is_rows(weights: Sequence[Any]) -> bool:
    """Whether a list is the rows of one matrix."""
    return bool(weights) and not any(
        isinstance(each, TernaryMatrix | MatrixLayer) or np.ndim(each) == 2 for each in weights)


def _described(layer: Layer) -> dict[str, Any]:
    return {
        "kind": _NAMES.get(type(layer), "network"), "profile": layer.profile.name,
        "columns": layer.columns, "rows": layer.rows,
        **{name: each.tolist() for name, each in layer.vectors().items()},
        "projections": {
            name: {"shape": list(each.weight.shape), "k": each.k, "shift": each.shift,
                   "sha256": sha256_of(each.weight)}
            for name, each in layer.matrices().items()}}


def _stated(cycles: Sequence[UnitCycles]) -> dict[str, Any]:
    return {"cycles": [asdict(each) for each in cycles]}


def sha256_of(weight: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(weight).tobytes()).hexdigest()
