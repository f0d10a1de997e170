"""From a layer of integers to the geometry of its unit and the contents of its memories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sterna.hw.layers.engine_params import EngineParams
from sterna.hw.layers.layer_unit import LayerUnitParams
from sterna.hw.layers.matrix_unit import Contents, MatrixUnitParams
from sterna.hw.layers.post_params import PostParams, Slot, bias_words, interleaved
from sterna.hw.units.glu import GluParams
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.mac.weight_packing import pack_projection
from sterna.hw.units.mlgru import MlgruParams
from sterna.hw.units.norm_params import NormParams
from sterna.model.checks import check_whole
from sterna.model.layers import BitLinearLayer, GluLayer, Layer, MatrixLayer, MlgruLayer
from sterna.model.layers.matrix import MANTISSA_BITS
from sterna.model.profile import FixedPoint
from sterna.model.quantized import Projection

__all__ = ["ArraySizes", "plan_layer", "plan_matrices"]

_ROWS, _COLS, _LANES = 8, 128, 8
"""Sizes unless told otherwise; a smaller matrix gets a smaller array."""


@dataclass(frozen=True, slots=True)
class ArraySizes:
    """Sizes that were chosen; None stands for what suits the matrices.

    Parameters
    ----------
    rows
        Rows side by side in the array.
    cols
        Columns taken per cycle; a multiple of ``lanes``.
    lanes
        Activations that come, or are quantised, per cycle; for a layer a multiple of ``rows``.
    style
        What the array is built of.
    """

    rows: int | None = None
    cols: int | None = None
    lanes: int | None = None
    style: ArrayStyle = ArrayStyle.GENERIC

    def engine(
        self, shapes: Sequence[tuple[int, int]], lanes: int, *, rom: bool = True,
    ) -> EngineParams:
        """The engine for matrices of these shapes; ``lanes`` unless another was chosen.

        Raises
        ------
        ValueError
            If a size is out of its range.
        """
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
    """The unit of matrices that share an array.

    Raises
    ------
    ValueError
        If there is none, some give sums and others do not, their formats differ, or a size
        does not fit.
    """
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
    """The unit of a layer behind a norm.

    Raises
    ------
    ValueError
        If it is no BitLinear, MLGRU or GLU, or a size does not fit.
    """
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
