"""What the shell offers for an argument: the names of models, units and targets."""

from __future__ import annotations

from sterna.model.quantized.bundled import BUNDLED

__all__ = ["complete_model", "complete_target", "complete_unit"]


def complete_model(begun: str) -> list[str]:
    """Bundled models; without one that begins so, the shell offers files."""
    return [name for name in BUNDLED if name.startswith(begun)]


def complete_unit(begun: str) -> list[str]:
    """Units of the catalog."""
    from sterna.hw.catalog import UNITS
    return [name for name in UNITS if name.startswith(begun)]


def complete_target(begun: str) -> list[str]:
    """FPGAs that ``sterna synth`` knows."""
    from sterna.hw.flow.target import TARGETS
    return [name for name in TARGETS if name.startswith(begun)]
