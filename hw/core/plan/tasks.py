"""Payloads that travel between the parts of the core."""

from __future__ import annotations

from amaranth.hdl import unsigned
from amaranth.lib.data import ArrayLayout, StructLayout

from sterna.hw.core.plan.image import CoreImage
from sterna.hw.core.plan.program import MAX_SLOTS
from sterna.hw.units.weights.params import WeightRomParams

__all__ = ["result_tag_layout", "task_layout", "weight_request_layout"]


def task_layout(image: CoreImage) -> StructLayout:
    """A stage of one sequence: what the issuer of beats and the post-processor need of it.

    ``start`` says that the stage is the first of a sequence.
    """
    stage = image.stage_layout.members
    return StructLayout({
        **{name: stage[name] for name in (
            "kind", "last_slot", "tiles", "headers", "first_header")},
        "shift": ArrayLayout(unsigned(image.shift_bits), MAX_SLOTS),
        "start": 1,
        "sequence": image.params.index_bits,
    })


def weight_request_layout(image: CoreImage) -> StructLayout:
    """The weight words of a stage: the first of them and how many, as a WeightRom is asked."""
    return WeightRomParams(len(image.weights), image.params.weight_bits).request_layout


def result_tag_layout(image: CoreImage) -> StructLayout:
    """What travels with a word of results: where it goes, and its place in the stage."""
    return StructLayout({
        "kind": 2, "slot": 2, "last": 1, "start": 1, "sequence": image.params.index_bits})
