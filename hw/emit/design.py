"""A unit made for a model, as the emitter takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from amaranth.lib import wiring

__all__ = ["UnitDesign"]


@dataclass(frozen=True, slots=True)
class UnitDesign:
    """A unit made for a model, and what its folder says about it.

    Parameters
    ----------
    component
        The unit.
    module
        Name of its Verilog module.
    params
        Its parameters, a frozen dataclass.
    derived
        Properties of ``params`` that the manifest states as well.
    summary
        What it does, in a sentence.
    sections
        Further sections of the README, in Markdown.
    extra
        Further entries of the manifest.
    extra_files
        Further files: text by name.
    """

    component: wiring.Component
    module: str
    params: Any
    derived: tuple[str, ...]
    summary: str
    sections: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    extra_files: Mapping[str, str] = field(default_factory=dict)
