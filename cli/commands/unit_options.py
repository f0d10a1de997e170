"""Options for a unit and its sizes, shared by all commands that take a unit.

An option that is not given is None. Each unit defines its sizes
(:attr:`sterna.hw.units.spec.UnitSpec.sizes`), so nothing here depends on a specific unit.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import typer

from sterna.cli.terminal.options import complete_unit
from sterna.hw.core.params.sizes import ChosenSizes

__all__ = ["SIZES", "GivenSizes", "UnitOption", "size_options"]

UnitOption = Annotated[str | None, typer.Option(
    metavar="UNIT", help="core, network, or a part of a core: sterna units lists them with their "
                         "sizes. Default: the whole model.",
    autocompletion=complete_unit)]

GivenSizes: TypeAlias = dict[str, Any]
"""The given sizes by name."""


def _option(name: str, default: Any, text: str) -> Any:
    """The option for a size: a flag, or a value of its default's type."""
    if isinstance(default, bool):
        return Annotated[bool | None, typer.Option(f"--{name.replace('_', '-')}", help=text)]
    return Annotated[type(default) | None, typer.Option(help=text)]


_OPTIONS: dict[str, Any] = {
    **{name: _option(name, *said) for name, said in ChosenSizes.options().items()},
    "lanes": _option("lanes", 8, "Channels of MLGRU or GLU per beat."),
}

SIZES = tuple(_OPTIONS)
"""The names of all sizes."""


def size_options(*names: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command an option for each of these sizes; without names, for all of them.

    They replace its parameter ``sizes``, which receives the given ones.
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

        # Read by typer: the options instead of the one parameter. (Type checkers do not know
        # `__signature__` of functions.)
        call.__signature__ = signature.replace(parameters=parameters)   # type: ignore[attr-defined]
        call.__annotations__ = {each.name: each.annotation for each in parameters}
        return call

    return extend
