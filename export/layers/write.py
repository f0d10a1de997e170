"""Writing one layer as an ONNX file: any ternary matrix, BitLinear, MLGRU, GLU, or several."""

from __future__ import annotations

from pathlib import Path

from sterna.export.forms.writer import check_graph_name, serialize
from sterna.export.layers.layer_graph import build_layer
from sterna.export.layers.matrix_graph import build_matrix
from sterna.export.layers.selftest import describe_layer
from sterna.model.files import check_path, write_atomically
from sterna.model.layers import GluLayer, Layer, MatrixLayer, MlgruLayer
from sterna.model.layers.arguments import LayerOrWeights, layer_of, matrix_layer_of
from sterna.model.layers.ternary import Ternary
from sterna.model.profile import S16, FixedPoint, NumericProfile

__all__ = ["export_glu", "export_layer", "export_matrix", "export_mlgru"]


def export_matrix(
    weights: MatrixLayer | Ternary, path: str | Path, *, output: FixedPoint | None = None,
) -> Path:
    """Write a ternary matrix as an ONNX graph: 8-bit activations in, exact integers out.

    Input ``acts`` int8 ``[batch, columns]``. Output ``sums`` int32 ``[batch, rows]``, or with
    an output format ``y`` int32 ``[batch, rows]``: ``sum * scale + bias`` in that format,
    rounded half up and saturated.

    Parameters
    ----------
    weights
        -1, 0 and 1, ``[rows, columns]``; with a scale or a bias a ``TernaryMatrix``; or a
        ``MatrixLayer``.
    path
        The file; it must end in ``.onnx``.
    output
        Format of the results, 2 to 23 bits; None for the sums.

    Returns
    -------
    The path. The same weights give the same bytes.

    Raises
    ------
    ValueError
        If the weights are not ternary, a scale or a bias has no output format, the scale
        cannot be represented, or the matrix has more than 8,421,504 columns, the most that
        the 32-bit accumulator of ``MatMulInteger`` is proven for.
    OSError
        If the file cannot be written; nothing is then left half-written.
    """
    return _write(matrix_layer_of(weights, output), path)


def export_layer(
    layer_or_weights: LayerOrWeights, path: str | Path, *,
    profile: NumericProfile | str | None = None, output: FixedPoint | None = None,
) -> Path:
    """Write a layer as an ONNX graph that computes its integers.

    Input ``x`` int32 ``[batch, columns]``, and ``state0``, ``state1`` ... int32 ``[batch, d]``,
    one for each MLGRU inside, zeros at the start. Output ``y`` int32 ``[batch, rows]``, and
    ``state0_out`` ... for the next call. A call advances every sequence by one vector.

    Parameters
    ----------
    layer_or_weights
        A layer of :mod:`sterna.model.layers`, or the weights of a BitLinear.
    path
        The file; it must end in ``.onnx``.
    profile
        Numeric formats of a BitLinear from weights, or their name, None for S16; a layer has its
        own.
    output
        Format of its results, 2 to 23 bits; None for ``profile.z``.

    Returns
    -------
    The path. The same layer gives the same bytes.

    Raises
    ------
    ValueError
        If the weights are not ternary, formats are given for a layer, the scale cannot be
        represented, or a matrix has more columns than the graph is proven exact for:
        8,421,504 with S16 and C12.
    OSError
        If the file cannot be written; nothing is then left half-written.
    """
    return _write(layer_of(layer_or_weights, profile=profile, output=output), path)


def export_mlgru(
    f: Ternary, c: Ternary, g: Ternary, out: Ternary, path: str | Path, *,
    profile: NumericProfile | str = S16, output: FixedPoint | None = None,
) -> Path:
    """Write an MLGRU of four ternary matrices; ``f``, ``c``, ``g`` are ``[d, columns]``, ``out``
    ``[rows, d]``. ``output`` None is ``profile.x``. The rest is as in :func:`export_layer`."""
    return _write(MlgruLayer.of(f, c, g, out, profile=profile, output=output), path)


def export_glu(
    gate: Ternary, up: Ternary, down: Ternary, path: str | Path, *,
    profile: NumericProfile | str = S16, output: FixedPoint | None = None,
) -> Path:
    """Write a GLU of three ternary matrices; ``gate`` and ``up`` are ``[dff, columns]``, ``down``
    ``[rows, dff]``. ``output`` None is ``profile.x``. The rest is as in :func:`export_layer`."""
    return _write(GluLayer.of(gate, up, down, profile=profile, output=output), path)


def _write(layer: Layer | MatrixLayer, path: str | Path) -> Path:
    check_path("path", path)
    path = check_graph_name(path)
    proto = build_matrix(layer) if isinstance(layer, MatrixLayer) else build_layer(layer)
    describe_layer(proto, layer)
    return write_atomically(path, serialize(proto))
