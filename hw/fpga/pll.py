"""PLL settings for a crystal, and errors for unreachable frequencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["MHZ", "Pll", "check_range", "exactly", "within"]

MHZ = 1_000_000


@dataclass(frozen=True, slots=True)
class Pll:
    """PLL settings by cell parameter, and the resulting output and internal oscillator (VCO)."""

    settings: Mapping[str, int]
    output_hz: Fraction
    oscillator_hz: Fraction


def within(value: Fraction | int, limits: tuple[int, int]) -> bool:
    return limits[0] <= value <= limits[1]


def check_range(name: str, hz: int, limits: tuple[int, int]) -> None:
    """Raise ValueError if a frequency is outside the limits."""
    if not within(hz, limits):
        raise ValueError(
            f"the {name} must be from {limits[0] / MHZ:g} to {limits[1] / MHZ:g} MHz for the "
            f"PLL, got {hz / MHZ:g} MHz")


def exactly(wanted: int, plls: Sequence[Pll]) -> list[Pll]:
    """The PLLs with exactly that output; ValueError with the nearest frequencies if none."""
    found = [pll for pll in plls if pll.output_hz == wanted]
    if not found:
        reachable = {pll.output_hz for pll in plls}
        nearest = (max((hz for hz in reachable if hz < wanted), default=None),
                   min((hz for hz in reachable if hz > wanted), default=None))
        raise ValueError(
            f"the PLL cannot make {wanted / MHZ:g} MHz; the nearest it can are "
            + " and ".join(f"{float(hz / MHZ):.10g}" for hz in nearest if hz is not None) + " MHz")
    return found
