"""Options that name a unit and choose its sizes, alike in every command that takes a unit.

An option that is not given is None; which of them a unit has is the unit's own business
(:attr:`sterna.hw.units.spec.UnitSpec.sizes`), so nothing here knows a unit.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sterna.hw.units.mac.base.style import ArrayStyle

__all__ = [
    "ColsOption",
    "ExternalWeightsOption",
    "LanesOption",
    "LogitsOption",
    "QuantLanesOption",
    "RoutingRegistersOption",
    "RowsOption",
    "SamplingOption",
    "SequencesOption",
    "StyleOption",
    "TraceOption",
    "UnitOption",
    "given",
]

UnitOption = Annotated[str, typer.Option(
    metavar="UNIT", help="core, or a part of it: sterna units lists them with their sizes.")]
RowsOption = Annotated[int | None, typer.Option(
    help="Dot products computed side by side; elements of a word of a vector.")]
ColsOption = Annotated[int | None, typer.Option(help="Columns of a matrix taken per beat.")]
LanesOption = Annotated[int | None, typer.Option(
    help="Channels taken per beat; for the norm, activations given per cycle, a multiple of "
         "--rows.")]
SequencesOption = Annotated[int | None, typer.Option(help="Interleaved sequences.")]
TraceOption = Annotated[bool | None, typer.Option(
    "--trace", help="Add a port for intermediate values.")]
QuantLanesOption = Annotated[int | None, typer.Option(
    help="Elements that the core quantises per cycle, a multiple of --rows; 0 chooses.")]
LogitsOption = Annotated[bool | None, typer.Option(
    "--logits/--no-logits", help="With or without a port for the logits of the core.")]
ExternalWeightsOption = Annotated[bool | None, typer.Option(
    "--external-weights", help="The core takes its weights through a port.")]
SamplingOption = Annotated[bool | None, typer.Option(
    "--sampling/--no-sampling",
    help="With or without the parts of the core that draw tokens with a temperature.")]
RoutingRegistersOption = Annotated[bool | None, typer.Option(
    "--routing-registers",
    help="One more register on each route between blocks of the core, for a large device.")]
StyleOption = Annotated[ArrayStyle | None, typer.Option(help="What the array is built of.")]


def given(**options: Any) -> dict[str, Any]:
    """The options that were given, by name."""
    return {name: value for name, value in options.items() if value is not None}
