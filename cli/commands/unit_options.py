"""Options that name a unit and choose its sizes, alike in every command that takes a unit.

An option that is not given is None; which of them a unit has is the unit's own business
(:attr:`sterna.hw.units.spec.UnitSpec.sizes`), so nothing here knows a unit.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import typer

from sterna.cli.terminal.options import complete_unit
from sterna.hw.units.mac.array_style import ArrayStyle

__all__ = ["SIZES", "GivenSizes", "UnitOption", "size_options"]

UnitOption = Annotated[str | None, typer.Option(
    metavar="UNIT", help="core, network, or a part of a core: sterna units lists them with their "
                         "sizes. Default: the whole model.",
    autocompletion=complete_unit)]

GivenSizes: TypeAlias = dict[str, Any]
"""The sizes that were given, by name."""


def _flag(names: str, text: str) -> Any:
    return Annotated[bool | None, typer.Option(names, help=text)]


_OPTIONS: dict[str, Any] = {
    "rows": Annotated[int | None, typer.Option(
        help="Dot products computed in parallel.")],
    "cols": Annotated[int | None, typer.Option(help="Matrix columns per beat.")],
    "lanes": Annotated[int | None, typer.Option(
        help="Channels of MLGRU or GLU per beat.")],
    "sequences": Annotated[int | None, typer.Option(
        help="Sequences that share each weight word, a power of two.")],
    "trace": _flag("--trace", "Add a port for intermediate values."),
    "clusters": Annotated[int | None, typer.Option(
        help="Parts of the core's columns with memories of their own; 0 chooses.")],
    "quant_lanes": Annotated[int | None, typer.Option(
        help="Elements that core or network quantises per cycle; 0 chooses.")],
    "post_lanes": Annotated[int | None, typer.Option(
        help="Results that the core makes per cycle; 0 chooses.")],
    "cell_lanes": Annotated[int | None, typer.Option(
        help="Channels of MLGRU and GLU that the core computes per cycle; 0 chooses.")],
    "port_bits": Annotated[int | None, typer.Option(
        help="Bits of a port through which core or network reads its model from a memory; 0 for "
             "ROMs.")],
    "style": Annotated[ArrayStyle | None, typer.Option(help="How the array is built.")],
    "compact": _flag(
        "--compact", "Build core or network for a small device: a bit of a quotient per cycle, and "
                     "always the most likely token."),
}


SIZES = tuple(_OPTIONS)
"""The names of all sizes."""


def size_options(*names: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command an option for each of these sizes; without names, for all of them.

    They stand in the place of its parameter ``sizes``, which gets those that were given.
    """
    chosen = names or SIZES

    def extend(command: Callable[..., int]) -> Callable[..., int]:
        signature = inspect.signature(command, eval_str=True)
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None,
                              annotation=_OPTIONS[name]) for name in chosen]
        parameters = [
            option for each in signature.parameters.values()
            for option in (options if each.name == "sizes" else
                           [each.replace(kind=inspect.Parameter.KEYWORD_ONLY)])]

        @functools.wraps(command)
        def call(**arguments: Any) -> int:
            sizes = {name: arguments.pop(name) for name in chosen}
            return command(**arguments, sizes={
                name: value for name, value in sizes.items() if value is not None})

        # What typer reads: the options in place of the one parameter. (Functions have no
        # `__signature__` to a type checker.)
        call.__signature__ = signature.replace(parameters=parameters)   # type: ignore[attr-defined]
        call.__annotations__ = {each.name: each.annotation for each in parameters}
        return call

    return extend
