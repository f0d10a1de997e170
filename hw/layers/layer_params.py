"""Geometry of a unit of matrices, or of a layer: its program and the sizes of its parts."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

from amaranth.hdl import Shape, signed, unsigned
from amaranth.lib.data import ArrayLayout, StructLayout

from sterna.hw.core.image.program import Stage, place_stages
from sterna.hw.core.params.geometry import Geometry
from sterna.model.layers.layer import FRAME_BITS
from sterna.model.quantized.plan import StageKind, StagePlan

__all__ = ["FRAME_STEPS", "FrameConstants", "LayerParams"]

FRAME_STEPS = 2
"""Cycles from a word of a frame to its scaled channels."""


@dataclass(frozen=True, slots=True)
class FrameConstants:
    """Offset subtracted from each channel, and right shift of the difference in bits."""

    offset: tuple[int, ...]
    shift: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LayerParams(Geometry):
    """Geometry of a :class:`~sterna.hw.layers.units.LayerUnit` or ``MatrixUnit``.

    ``limits.profile.logit`` is the format of its results. The stages of the program are in order,
    one by one; those of a ``MatrixUnit`` are independent matrices, which process two vectors at a
    time: its phases.
    """

    what = "layer or network"

    frame: FrameConstants | None = None  #: None if vectors go to the norm unscaled

    @classmethod
    def parsed(cls, name: str, value: Any) -> Any:
        if name == "frame" and value:
            return FrameConstants(tuple(value["offset"]), tuple(value["shift"]))
        return Geometry.parsed(name, value)

    @property
    def placed(self) -> list[Stage]:
        """The stages, with matrices named by :meth:`matrix_name`."""
        return place_stages([
            StagePlan(each.kind, tuple(self.matrix_name(index, slot)
                                       for slot in range(each.slots)), each.rows, each.columns)
            for index, each in enumerate(self.limits.program)], self)

    @property
    def channels(self) -> int:
        """Channels of a frame; 0 if vectors are not frames."""
        return len(self.frame.offset) if self.frame else 0

    @property
    def constants(self) -> tuple[Any, ...]:
        return () if self.frame is None else astuple(self.frame)

    @staticmethod
    def matrix_name(stage: int, slot: int) -> str:
        return f"stage{stage}.slot{slot}"

    @property
    def has_state(self) -> bool:
        """Whether a vector may be the first of a sequence."""
        return any(each.kind is StageKind.MLGRU for each in self.limits.program)

    def words_in(self, stage: int, lanes: int) -> int:
        """Words of ``lanes`` channels in the vector of a stage."""
        return -(-(self.channels or self.limits.program[stage].columns) // lanes)

    @property
    def vector_beats(self) -> int:
        """Words of ``post_lanes`` channels of a vector, padded to whole chunks."""
        return self.placed[0].chunks * self.quant_lanes // self.post_lanes

    @property
    def frame_steps(self) -> int:
        """Cycles of a vector before its norm."""
        return FRAME_STEPS if self.channels else 0

    def words_out(self, stage: int) -> int:
        """Words in the results of a stage."""
        return self.placed[stage].groups * self.row_beats

    # Payloads ----------------------------------------------------------------------

    @property
    def matrix_field(self) -> dict[str, Shape]:
        """The field with the index of a matrix, if there are several."""
        bits = (len(self.limits.program) - 1).bit_length()
        return {"matrix": unsigned(bits)} if bits else {}

    @property
    def sequence_field(self) -> dict[str, Shape]:
        """The field with the number of a sequence, if there are several."""
        bits = (self.sequences - 1).bit_length()
        return {"sequence": unsigned(bits)} if bits else {}

    @property
    def acts_layout(self) -> StructLayout:
        return StructLayout({
            "q": ArrayLayout(signed(self.profile.act_bits), self.quant_lanes),
            **self.matrix_field})

    @property
    def vector_layout(self) -> StructLayout:
        return StructLayout({
            "x": ArrayLayout(signed(FRAME_BITS if self.channels else self.norm.y_bits),
                             self.post_lanes),
            **({"start": 1} if self.has_state else {}), **self.sequence_field})

    def result_layout(self, name: str, field: dict[str, Shape]) -> StructLayout:
        """Payload of ``sums`` or ``results``, with values of this name."""
        return StructLayout({
            name: ArrayLayout(signed(self.profile.logit.bits), self.post_lanes), "last": 1,
            **field})
