"""The FPGA families, one file each; a new family needs no change elsewhere.

``TARGETS`` in each file lists its devices.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

from sterna.hw.fpga.family import FpgaFamily, FpgaTarget
from sterna.hw.units.mac.array_style import ArrayStyle

__all__ = ["FAMILIES", "TARGETS", "style_for", "target_named"]

_MODULES = [importlib.import_module(f"{__name__}.{each.name}")
            for each in pkgutil.iter_modules(__path__)]

TARGETS: Mapping[str, FpgaTarget] = MappingProxyType(
    {target.name: target for module in _MODULES for target in module.TARGETS})
"""Every target by name."""

FAMILIES: Mapping[str, FpgaFamily] = MappingProxyType(
    {target.family.name: target.family for target in TARGETS.values()})
"""Every family by name."""


def target_named(name: str) -> FpgaTarget:
    """Return a target by name; ValueError with a list of all targets if unknown."""
    if name not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}, got {name!r}")
    return TARGETS[name]


def style_for(target: FpgaTarget, wanted: str = "auto") -> ArrayStyle:
    """Choose the structure of the array's rows; ``auto`` takes the smallest for the target."""
    if wanted == "auto":
        return target.family.style
    if wanted not in list(ArrayStyle):
        raise ValueError(
            f"style must be auto or one of {', '.join(ArrayStyle)}, got {wanted!r}")
    style = ArrayStyle(wanted)
    if style not in (ArrayStyle.GENERIC, target.family.style):
        owner = next(name for name, each in FAMILIES.items() if each.style is style)
        raise ValueError(
            f"style {style} is built from cells of {owner}, which {target.name} does not have: "
            f"take --style auto")
    return style
