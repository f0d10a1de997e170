"""Geometry and formats of the GLU unit."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import Shape, signed
from amaranth.lib.data import ArrayLayout, StructLayout

from sterna.hw.parts.sequence import Interleaved
from sterna.hw.parts.sigmoid_table import SigmoidParams
from sterna.model.checks import check_whole
from sterna.model.profile import NumericProfile

__all__ = ["GluParams"]


@dataclass(frozen=True, slots=True)
class GluParams(Interleaved):
    """Geometry and formats of a GLU unit.

    Parameters
    ----------
    profile
        Formats of every number.
    lanes
        Channels taken per beat.
    sequences
        Interleaved sequences, 1 or 2.
    trace
        Whether the beats of ``products`` also bring ``silu(gate)``, for verification.
    stalls
        Whether products may have to wait to be taken.
    silu_table
        Whether ``silu(gate)`` is looked up in a table like the sigmoid's, without a product,
        if the profile has a sigmoid for every value of z. Otherwise this changes nothing.
    routing_registers
        Whether what a multiplier takes from another goes through one more register.

    Raises
    ------
    ValueError
        If a number is out of its range.

    >>> from sterna.model.profile import C12, S16
    >>> GluParams(C12, lanes=8).latency, GluParams(S16, lanes=8).latency
    (6, 8)
    """

    profile: NumericProfile
    lanes: int
    sequences: int = 1
    trace: bool = False
    stalls: bool = True
    silu_table: bool = False
    routing_registers: bool = False

    def __post_init__(self) -> None:
        check_whole("lanes", self.lanes, 1, 4096)
        check_whole("sequences", self.sequences, 1, 2)

    @property
    def looks_up_silu(self) -> bool:
        """Whether ``silu(gate)`` comes from a table of its own."""
        return self.silu_table and not self.profile.sigmoid_step_bits

    @property
    def sigmoid(self) -> SigmoidParams:
        """The table of the gate's sigmoid, or of ``silu(gate)``."""
        return SigmoidParams(self.profile, self.looks_up_silu)

    @property
    def silu_step(self) -> int:
        """Step at which ``silu(gate)`` is known: sigmoid, product, rounding."""
        return self.sigmoid.latency + self.routing_registers + 2

    @property
    def latency(self) -> int:
        """Steps from ``preacts`` to ``products``: silu, product, saturation."""
        return self.silu_step + self.routing_registers + 2

    @property
    def preact_layout(self) -> StructLayout:
        """Payload of ``preacts``."""
        lanes = ArrayLayout(signed(self.profile.z.bits), self.lanes)
        return StructLayout({"gate": lanes, "up": lanes, "last": 1} | self.sequence_field)

    @property
    def product_layout(self) -> StructLayout:
        """Payload of ``products``."""
        fields: dict[str, Shape | ArrayLayout | int] = {
            "p": ArrayLayout(signed(self.profile.p.bits), self.lanes), "last": 1}
        fields |= self.sequence_field
        if self.trace:
            fields["silu"] = ArrayLayout(signed(self.profile.z.bits), self.lanes)
        return StructLayout(fields)
