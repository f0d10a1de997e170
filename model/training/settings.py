"""The settings of a run by name, as a recipe file and ``--set`` of ``sterna train`` give them.

They are the fields of :class:`~sterna.model.config.ModelConfig`, :class:`TrainRecipe`,
:class:`Execution` and :class:`Recording`, whose names differ, so that a file needs no sections. A
recipe file is TOML.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from sterna.model.config import ModelConfig
from sterna.model.files import read_text
from sterna.model.training.recipe import Execution, Recording, TrainRecipe

__all__ = ["SETTINGS", "TrainSettings", "parse_setting", "read_settings"]

_OBJECTS = (ModelConfig, TrainRecipe, Execution, Recording)
_ELSEWHERE = {"vocab", "command"}       # what the tokenizer and the command line say
_LR_WIDTH = "lr_width"

SETTINGS: dict[str, Any] = {
    **{each.name: get_type_hints(kind)[each.name] for kind in _OBJECTS for each in fields(kind)
       if each.name not in _ELSEWHERE},
    _LR_WIDTH: int}
"""The type of every setting, by its name. ``lr_width`` is no field: it says for a model of which
width ``lr`` is (:meth:`TrainRecipe.carried_over`)."""

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """What settings by name come to."""

    config: ModelConfig
    recipe: TrainRecipe
    execution: Execution
    recording: Recording

    @classmethod
    def of(
        cls, base: ModelConfig, given: Mapping[str, Any], command: tuple[str, ...] = (),
    ) -> TrainSettings:
        """The settings ``given`` by name, in place of the defaults and of those of ``base``.

        >>> TrainSettings.of(ModelConfig.named("tiny"), {"d": 64, "lr": 0.02}).recipe.lr
        0.02
        """
        for name, value in given.items():
            _check(name, value)

        def of(kind: type) -> dict[str, Any]:
            return {each.name: given[each.name] for each in fields(kind) if each.name in given}

        config = replace(base, **of(ModelConfig))
        recipe = TrainRecipe.of(config.weights, **of(TrainRecipe))
        if _LR_WIDTH in given:
            recipe = recipe.carried_over(given[_LR_WIDTH], config.d)
        return cls(config, recipe, Execution(**of(Execution)),
                   Recording(**of(Recording), command=command))


def _check(name: str, value: object) -> None:
    if name not in SETTINGS:
        near = difflib.get_close_matches(name, SETTINGS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"there is no setting {name!r}: {hint}known are "
                         f"{', '.join(sorted(SETTINGS))}")
    kinds = get_args(SETTINGS[name]) or (SETTINGS[name],)
    if type(value) not in kinds and not (float in kinds and type(value) is int):
        words = " or ".join(_WORDS[each] for each in kinds if each in _WORDS)
        raise ValueError(f"{name} must be {words}, got {value!r}")


def parse_setting(text: str) -> tuple[str, Any]:
    """Name and value of ``name=value``; the value as in TOML, or else as text.

    >>> [parse_setting(each) for each in ("lr=1e-3", "order=epoch", "carry_state=true")]
    [('lr', 0.001), ('order', 'epoch'), ('carry_state', True)]
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"--set takes NAME=VALUE, such as lr=0.005, got {text!r}")
    try:
        found = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        found = {}
    return name.strip(), found["value"] if found.keys() == {"value"} else value.strip()


def read_settings(path: str | Path) -> dict[str, Any]:
    """The settings that a recipe file names."""
    try:
        found = tomllib.loads(read_text(path, at_least=0).decode())
        for name, value in found.items():
            _check(name, value)
    except ValueError as error:
        said = str(error)
        raise ValueError(said if str(path) in said else f"{path}: {said}") from error
    return found
