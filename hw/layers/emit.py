"""Emitting ternary matrices and layers of one's own as folders of Verilog."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sterna.hw.emit.folder import EmittedUnit, UnitDesign, emit_component, interface_of
from sterna.hw.emit.names import plain
from sterna.hw.emit.payloads import UnitPorts
from sterna.hw.layers.documents import (
    WEIGHTS_FILE,
    layer_sections,
    layer_summary,
    layer_vectors,
    matrix_sections,
    matrix_summary,
    matrix_vectors,
)
from sterna.hw.layers.engine import EngineParams
from sterna.hw.layers.layer_unit import LayerUnit, LayerUnitParams
from sterna.hw.layers.matrix_unit import Contents, MatrixUnit, MatrixUnitParams
from sterna.hw.layers.post import PostParams, Slot, bias_words, interleaved
from sterna.hw.units.glu import GluParams
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.mac.weight_packing import pack_projection
from sterna.hw.units.mlgru import MlgruParams
from sterna.hw.units.norm_params import NormParams
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
from sterna.model.layers.layer import LayerOrWeights, layer_of, matrix_layer_of
from sterna.model.layers.matrix import MANTISSA_BITS, Ternary
from sterna.model.profile import S16, FixedPoint, NumericProfile
from sterna.model.quantized import Projection

__all__ = [
    "ArraySizes", "emit_glu", "emit_layer", "emit_matrix", "emit_mlgru", "layer_component",
    "matrix_component", "plan_layer", "plan_matrices"]

_ROWS, _COLS, _LANES = 8, 128, 8
"""Sizes unless told otherwise; a smaller matrix gets a smaller array."""


@dataclass(frozen=True, slots=True)
class ArraySizes:
    """Sizes that were chosen, as :func:`emit_matrix` takes them; None stands for what suits the
    matrices."""

    rows: int | None = None
    cols: int | None = None
    lanes: int | None = None
    style: ArrayStyle = ArrayStyle.GENERIC

    def engine(
        self, shapes: Sequence[tuple[int, int]], lanes: int, *, rom: bool = True,
    ) -> EngineParams:
        """The engine for matrices of these shapes; ``lanes`` unless another was chosen."""
        most_rows, most_columns = (max(sizes) for sizes in zip(*shapes, strict=True))
        rows = min(_ROWS, most_rows) if self.rows is None else self.rows
        check_whole("rows", rows, 1, most_rows)
        lanes = lanes if self.lanes is None else self.lanes
        check_whole("lanes", lanes, 1, 4096)
        whole = -(-most_columns // lanes) * lanes
        cols = max(lanes, min(_COLS, whole) // lanes * lanes) if self.cols is None else self.cols
        check_whole("cols", cols, 1, whole)
        mac = MacParams(rows, cols, max(most_columns, cols), style=self.style)
        return EngineParams(mac, lanes, tuple(shapes), rom)


def plan_matrices(
    layers: Sequence[MatrixLayer], sizes: ArraySizes, *, rom: bool = True,
) -> tuple[MatrixUnitParams, Contents]:
    """The unit of matrices that share an array."""
    if not layers:
        raise ValueError("there must be at least one matrix")
    formats = {None if each.requantization is None else each.requantization.output
               for each in layers}
    if len(formats) > 1:
        raise ValueError(f"all matrices must have one output format, got {list(formats)}")
    engine = sizes.engine(
        [each.weight.shape for each in layers],
        min(_LANES, max(each.columns for each in layers)), rom=rom)
    words = [word for each in layers for word in pack_projection(each.weight, engine.mac)]
    numbers = [each.requantization for each in layers if each.requantization is not None]
    if not numbers:
        return MatrixUnitParams(engine), Contents(words)
    projections = [Projection(layer.weight, each.bias, each.k, each.shift)
                   for layer, each in zip(layers, numbers, strict=True)]
    post, biases = _post(
        engine, [[each] for each in projections], [numbers[0].output] * len(layers),
        MANTISSA_BITS)
    return MatrixUnitParams(engine, post), Contents(words, biases)


def plan_layer(layer: Layer, sizes: ArraySizes) -> tuple[LayerUnitParams, Contents]:
    """The unit of a layer behind a norm."""
    if not isinstance(layer, BitLinearLayer | MlgruLayer | GluLayer):
        raise ValueError(
            f"a unit is made of a BitLinearLayer, MlgruLayer or GluLayer, got a "
            f"{type(layer).__name__}: emit its parts one by one")
    names = list(layer.projections)
    parts = [names] if len(names) == 1 else [names[:-1], names[-1:]]
    profile = layer.profile
    shapes = [layer.projections[part[0]].weight.shape for part in parts]
    rows = min(_ROWS, max(shape[0] for shape in shapes)) if sizes.rows is None else sizes.rows
    check_whole("rows", rows, 1, 4096)
    stacked = [
        interleaved([layer.projections[name].weight for name in part], rows) for part in parts]
    engine = ArraySizes(rows, sizes.cols, sizes.lanes, sizes.style).engine(
        [(len(weight), weight.shape[1]) for weight in stacked], rows)
    formats = [layer.output] if len(parts) == 1 else [profile.z, layer.output]
    post, biases = _post(
        engine, [[layer.projections[name] for name in part] for part in parts], formats,
        profile.scale_bits)
    channels = -(-shapes[0][0] // rows) * rows
    norm = NormParams(profile, rows, engine.lanes, max(shape[1] for shape in shapes))
    cell: MlgruParams | GluParams | None = None
    if isinstance(layer, MlgruLayer):
        cell = MlgruParams(profile, 1, channels, rows)
    elif isinstance(layer, GluLayer):
        cell = GluParams(profile, rows)
    words = [word for weight in stacked for word in pack_projection(weight, engine.mac)]
    return LayerUnitParams(norm, post, layer.output, cell), Contents(words, biases)


def _post(
    engine: EngineParams, projections: Sequence[Sequence[Projection]],
    formats: Sequence[FixedPoint], scale_bits: int,
) -> tuple[PostParams, list[list[int]]]:
    """The requantiser, and its biases."""
    biased = any(each.bias.any() for slots in projections for each in slots)
    post = PostParams(
        engine,
        tuple(tuple(Slot(each.k, each.shift, fmt) for each in slots)
              for slots, fmt in zip(projections, formats, strict=True)),
        scale_bits, biased)
    words = [word for slots in projections for word in bias_words(slots, engine.mac.rows)]
    return post, words if biased else []


def emit_matrix(
    weights: Ternary | MatrixLayer | Sequence[Ternary | MatrixLayer], folder: str | Path, *,
    output: FixedPoint | None = None, rom: bool = True, rows: int | None = None,
    cols: int | None = None, lanes: int | None = None, style: str = "generic",
    name: str = "ternary_matrix", axis: bool = False,
) -> EmittedUnit:
    """Write Verilog that multiplies int8 vectors with a ternary matrix, or with several.

    Stream ``acts`` in: ``q``, ``lanes`` signed 8-bit activations a word, a vector in
    ``ceil(columns / lanes)`` words. Stream ``sums`` out: ``sum``, ``rows`` exact dot products a
    word, ``last`` with the last of ``ceil(matrix rows / rows)`` words. With ``output`` it is
    called ``results`` and has ``y``. With several matrices both have ``matrix``, the index.

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
    rom
        Whether the weights are in a memory of the unit; else they come through a port,
        ``weights``, in the words of ``weights.hex``.
    rows, cols
        Size of the array: rows side by side, columns per cycle; None for up to 8 x 128.
    lanes
        Activations per word of ``acts``, a divisor of ``cols``; None for up to 8.
    style
        What the array is built of: ``generic``, ``ecp5-chain``, ``ecp5-table``, ``xc7-pair``
        or ``xc7-table``.
    name
        Name of the Verilog module.
    axis
        Whether to write AXI4-Stream ports around it, too.

    Returns
    -------
    The folder; ``params.latencies`` and ``params.periods`` of it are cycles, for each matrix.

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
    _check_name(name)
    layers, params, contents = _planned(weights, output, rom, _sizes(rows, cols, lanes, style))
    unit = MatrixUnit(params, contents if rom else replace(contents, words=[]))
    ports = UnitPorts.of(interface_of(unit))
    design = UnitDesign(
        unit, name, derived=(), summary=matrix_summary(params), sections=matrix_sections(params),
        extra={} if rom else _weights_index(params, contents),
        extra_files={} if rom else _weights_file(params, contents),
        vectors=matrix_vectors(layers, params, ports))
    origin = {"matrices": [
        {"rows": each.rows, "columns": each.columns,
         "sha256": hashlib.sha256(np.ascontiguousarray(each.weight).tobytes()).hexdigest(),
         "requantized": each.requantization is not None,
         "words_in": params.engine.act_words(index), "words_out": params.engine.groups(index),
         "latency": params.latencies[index], "period": params.periods[index]}
        for index, each in enumerate(layers)]}
    return emit_component(origin, design, folder, axis=axis)


def emit_layer(
    layer_or_weights: LayerOrWeights, folder: str | Path, *,
    profile: NumericProfile | str | None = None, output: FixedPoint | None = None,
    rows: int | None = None, cols: int | None = None, lanes: int | None = None,
    style: str = "generic", name: str | None = None, axis: bool = False,
) -> EmittedUnit:
    """Write Verilog of a layer: norm and 8-bit quantisation, ternary matrix, scale and bias.

    Stream ``vectors`` in: ``x``, ``rows`` signed channels a word in the bits of the widest
    vector of the profile (16 of S16, 12 of C12), and ``last``; with an MLGRU also ``start``.
    Stream ``results`` out: ``y``, ``rows`` channels a word in format ``output``, and ``last``.

    Parameters
    ----------
    layer_or_weights
        The weights of a BitLinear, ``[rows, columns]`` or a ``TernaryMatrix``; or a
        ``BitLinearLayer``, ``MlgruLayer`` or ``GluLayer`` of :mod:`sterna.model.layers`.
    folder
        Where to write.
    profile
        Numeric formats of a BitLinear from weights, or their name, None for S16; a layer has its
        own.
    output
        Format of its results, 2 to 23 bits; None for ``profile.z``.
    rows, cols
        Size of the array, as for :func:`emit_matrix`; words have ``rows`` channels.
    lanes
        Elements quantised per cycle, each by a multiplier: a multiple of ``rows`` that divides
        ``cols``; None for ``rows``.
    style, axis
        As for :func:`emit_matrix`.
    name
        Name of the Verilog module; None for ``bitlinear``, ``mlgru`` or ``glu``.

    Returns
    -------
    The folder; ``params.latency`` and ``params.period`` of it are cycles.

    Raises
    ------
    ValueError
        If the weights are not ternary, the scale cannot be represented, formats are given for
        a layer, it is another layer, a size does not fit, or the folder is refused.
    OSError
        If the folder cannot be written.
    """
    check_path("folder", folder)
    check_replaceable(Path(folder))
    layer = _layer_with_norm(layer_or_weights, profile, output)
    params, contents = plan_layer(layer, _sizes(rows, cols, lanes, style))
    name = _NAMES[type(layer)] if name is None else name
    _check_name(name)
    unit = LayerUnit(params, contents)
    design = UnitDesign(
        unit, name, derived=("latency", "period"), summary=layer_summary(layer, params),
        sections=layer_sections(layer, params),
        vectors=layer_vectors(layer, params, UnitPorts.of(interface_of(unit))))
    return emit_component({"layer": _described(layer)}, design, folder, axis=axis)


def emit_mlgru(
    f: Ternary, c: Ternary, g: Ternary, out: Ternary, folder: str | Path, *,
    profile: NumericProfile | str = S16, output: FixedPoint | None = None,
    rows: int | None = None, cols: int | None = None, lanes: int | None = None,
    style: str = "generic", name: str | None = None, axis: bool = False,
) -> EmittedUnit:
    """Write Verilog of an MLGRU of four ternary matrices; ``f``, ``c``, ``g`` are
    ``[d, columns]``, ``out`` ``[rows, d]``. ``output`` None is ``profile.x``. The state lives
    inside. Sizes and the rest are as in :func:`emit_layer`."""
    return emit_layer(
        MlgruLayer.of(f, c, g, out, profile=profile, output=output), folder, rows=rows,
        cols=cols, lanes=lanes, style=style, name=name, axis=axis)


def emit_glu(
    gate: Ternary, up: Ternary, down: Ternary, folder: str | Path, *,
    profile: NumericProfile | str = S16, output: FixedPoint | None = None,
    rows: int | None = None, cols: int | None = None, lanes: int | None = None,
    style: str = "generic", name: str | None = None, axis: bool = False,
) -> EmittedUnit:
    """Write Verilog of a GLU of three ternary matrices; ``gate`` and ``up`` are
    ``[dff, columns]``, ``down`` ``[rows, dff]``. ``output`` None is ``profile.x``. Sizes and the
    rest are as in :func:`emit_layer`."""
    return emit_layer(
        GluLayer.of(gate, up, down, profile=profile, output=output), folder, rows=rows,
        cols=cols, lanes=lanes, style=style, name=name, axis=axis)


def matrix_component(
    weights: Ternary | MatrixLayer | Sequence[Ternary | MatrixLayer], *,
    output: FixedPoint | None = None, rom: bool = True, rows: int | None = None,
    cols: int | None = None, lanes: int | None = None, style: str = "generic",
) -> MatrixUnit:
    """The Amaranth component that :func:`emit_matrix` writes, with the same arguments and
    errors::

        m.submodules.fc = fc = matrix_component(weights, rows=4)
        wiring.connect(m, fc.acts, ...)
    """
    _, params, contents = _planned(weights, output, rom, _sizes(rows, cols, lanes, style))
    return MatrixUnit(params, contents if rom else replace(contents, words=[]))


def layer_component(
    layer_or_weights: LayerOrWeights, *, profile: NumericProfile | str | None = None,
    output: FixedPoint | None = None, rows: int | None = None, cols: int | None = None,
    lanes: int | None = None, style: str = "generic",
) -> LayerUnit:
    """The Amaranth component that :func:`emit_layer` writes, with the same arguments and errors.

    Of an MLGRU or a GLU give ``MlgruLayer.of(...)`` or ``GluLayer.of(...)`` of
    :mod:`sterna.model.layers`.
    """
    layer = _layer_with_norm(layer_or_weights, profile, output)
    return LayerUnit(*plan_layer(layer, _sizes(rows, cols, lanes, style)))


def _planned(
    weights: Any, output: FixedPoint | None, rom: bool, sizes: ArraySizes,
) -> tuple[list[MatrixLayer], MatrixUnitParams, Contents]:
    several = isinstance(weights, Sequence) and not _is_rows(weights)
    layers = _each_layer(weights, output) if several else [matrix_layer_of(weights, output)]
    if not isinstance(rom, bool):
        raise ValueError(f"rom must be True or False, got {rom!r}")
    return layers, *plan_matrices(layers, sizes, rom=rom)


def _layer_with_norm(
    layer_or_weights: LayerOrWeights, profile: NumericProfile | str | None,
    output: FixedPoint | None,
) -> Layer:
    layer = layer_of(layer_or_weights, profile=profile, output=output)
    if isinstance(layer, MatrixLayer):
        raise ValueError("a MatrixLayer has no norm: it is for emit_matrix and matrix_component")
    return layer


_TAKEN = ("ecp5", "xc7")
"""Verilog files of a folder that are called so: models of cells."""
_NAMES: Mapping[type, str] = {BitLinearLayer: "bitlinear", MlgruLayer: "mlgru", GluLayer: "glu"}


def _each_layer(weights: Sequence[Any], output: FixedPoint | None) -> list[MatrixLayer]:
    layers = []
    for index, each in enumerate(weights):
        try:
            layers.append(matrix_layer_of(each, output))
        except ValueError as error:
            raise ValueError(f"matrix {index}: {error}") from error
    return layers


def _is_rows(weights: Sequence[Any]) -> bool:
    """Whether a list is the rows of one matrix."""
    return bool(weights) and not any(
        isinstance(each, TernaryMatrix | MatrixLayer) or np.ndim(each) == 2 for each in weights)


def _sizes(rows: int | None, cols: int | None, lanes: int | None, style: str) -> ArraySizes:
    return ArraySizes(rows, cols, lanes, one_of("style", style, ArrayStyle))


def _check_name(name: str) -> None:
    """Refuse what is no plain Verilog name, and those of files that the folder has in any case."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise ValueError(
            f"name must be a Verilog name (letters, digits, _; no digit first), got {name!r}")
    if plain(name) != name or name in _TAKEN:
        raise ValueError(
            f"name must be no word of Verilog and none of {', '.join(_TAKEN)}, got {name!r}")


def _described(layer: Layer) -> dict[str, Any]:
    """What the manifest says of a layer."""
    assert isinstance(layer, BitLinearLayer | MlgruLayer | GluLayer)
    return {
        "kind": _NAMES[type(layer)], "profile": layer.profile.name,
        "columns": layer.columns, "rows": layer.rows,
        "projections": {
            name: {"shape": list(each.weight.shape), "k": each.k, "shift": each.shift,
                   "sha256": hashlib.sha256(np.ascontiguousarray(each.weight).tobytes()
                                            ).hexdigest()}
            for name, each in layer.projections.items()}}


def _weights_index(params: MatrixUnitParams, contents: Contents) -> dict[str, Any]:
    engine = params.engine
    return {"weights": {
        "file": WEIGHTS_FILE, "lines": len(contents.words),
        "matrices": [{"first_line": engine.first_word(i), "lines": engine.matrix_words(i)}
                     for i in range(len(engine.shapes))]}}


def _weights_file(params: MatrixUnitParams, contents: Contents) -> dict[str, str]:
    digits = -(-params.engine.mac.word_bits // 4)
    return {WEIGHTS_FILE: "".join(f"{word:0{digits}x}\n" for word in contents.words)}
