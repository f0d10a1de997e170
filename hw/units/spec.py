"""The units that can be emitted as Verilog, and their sizes."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from sterna.hw.units.mac.base.style import ArrayStyle

__all__ = ["Unit", "UnitSizes"]


class Unit(enum.StrEnum):
    """A unit that can be emitted and simulated on its own."""

    MAC = "mac"
    """The ternary multiply-accumulate array."""
    MLGRU = "mlgru"
    """The recurrence with its state memory and sigmoid tables."""
    NORM = "norm"
    """Normalisation and quantisation of a vector to 8-bit activations."""
    GLU = "glu"
    """The gated product of the channel mixer."""
    RESIDUAL = "residual"
    """The residual stream, kept in a memory that is added to."""
    EMBEDDING = "embedding"
    """The embedding table."""
    SAMPLER = "sampler"
    """The choice of the next token."""
    WEIGHTS = "weights"
    """The memory of the packed weights."""
    CORE = "core"
    """The whole model."""


@dataclass(frozen=True, slots=True)
class UnitSizes:
    """Sizes that are a matter of choice, not of the model; a unit reads those it has.

    Parameters
    ----------
    rows
        Dot products computed side by side, and elements of a word of a vector.
    cols
        Columns taken per beat of the array.
    lanes
        Channels a unit takes or gives per beat.
    streams
        Independent sequences that are interleaved.
    trace
        Whether intermediate values come out, too.
    quant_lanes
        Elements that the core's norm quantises per cycle; 0 chooses.
    logits, external_weights
        Whether the core has a port for logits, and takes its weights through a port.
    style
        What the array is built of.
    sampling
        Whether the core can draw tokens with a temperature.
    far_registers
        Whether the core has one more register on long ways, for a large device.

    Raises
    ------
    ValueError
        If there is no such style.
    """

    rows: int = 8
    cols: int = 128
    lanes: int = 8
    streams: int = 1
    trace: bool = False
    quant_lanes: int = 0
    logits: bool = True
    external_weights: bool = False
    style: ArrayStyle = ArrayStyle.GENERIC
    sampling: bool = True
    far_registers: bool = False

    def __post_init__(self) -> None:
        if self.style not in list(ArrayStyle):
            raise ValueError(
                f"style must be one of {', '.join(ArrayStyle)}, got {self.style!r}")
        object.__setattr__(self, "style", ArrayStyle(self.style))
