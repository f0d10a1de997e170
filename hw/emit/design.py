"""A unit made for a model, as the emitter takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sterna.hw.emit.selftest.vectors import Vectors

__all__ = ["UnitDesign"]


@dataclass(frozen=True, slots=True)
class UnitDesign:
    """A unit made for a model, and what its folder says about it.

    Parameters
    ----------
    component
        The unit; its attribute ``params`` is a frozen dataclass.
    module
        Name of its Verilog module.
    derived
        Properties of its parameters that the manifest states as well.
    summary
        What it does, in a sentence.
    sections
        Further sections of the README, in Markdown.
    extra
        Further entries of the manifest.
    extra_files
        Further files: text by name.
    vectors
        Words for the test that the folder carries; without them it has none.
    """

    component: Any
    module: str
    derived: tuple[str, ...]
    summary: str
    sections: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    extra_files: Mapping[str, str] = field(default_factory=dict)
    vectors: Vectors | None = None
