"""The unit ``mac`` as a whole: its sizes, its folder, its stimulus."""

from __future__ import annotations

from sterna.hw.units.mac.base.params import MacParams
from sterna.hw.units.mac.base.style import ArrayStyle
from sterna.hw.units.mac.stimulus import MAC_STIMULUS
from sterna.hw.units.mac.verilog import MAC_MODULE, mac_design
from sterna.hw.units.spec import UnitSpec
from sterna.model.checks import check_whole
from sterna.model.quantized import QuantizedModel

__all__ = ["MAC", "mac_params"]


_ROWS, _COLS = 8, 128
"""Sizes of an array unless told otherwise; a smaller model gets a smaller array."""


def mac_params(
    model: QuantizedModel, *, rows: int | None = None, cols: int | None = None,
    style: ArrayStyle = ArrayStyle.GENERIC,
) -> MacParams:
    """Return the geometry of an array for a model.

    Raises
    ------
    ValueError
        If a size is not a whole number, or the array larger than the largest projection.
    """
    shapes = model.config.projections()
    most_rows = max(shape[0] for shape in shapes.values())
    rows = min(_ROWS, most_rows) if rows is None else rows
    check_whole("rows", rows, 1)
    if rows > most_rows:
        raise ValueError(
            f"rows must be from 1 to {most_rows} (the rows of the largest projection of this "
            f"model), got {rows}")
    most_columns = max(shape[1] for shape in shapes.values())
    cols = min(_COLS, most_columns) if cols is None else cols
    check_whole("cols", cols, 1)
    if cols > most_columns:
        raise ValueError(
            f"cols must be from 1 to {most_columns} (the columns of the widest projection of "
            f"this model), got {cols}")
    return MacParams(rows, cols, most_columns, style=style)


MAC = UnitSpec(
    "mac", "the ternary multiply-accumulate array",
    MAC_MODULE, mac_params, mac_design, MAC_STIMULUS, tokens=4)
