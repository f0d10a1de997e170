"""What the memories of the core hold: a quantised model in the order in which it is used.

Weights are in the order of use: for each stage, for each group of ``rows`` rows, for each of
the interleaved matrices, the tiles of that group. A row header (its start value and its
bias) stands beside, one word for each group of each matrix, in the same order.

The layouts of tasks, weight requests and tags of results follow from the widths of an image.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from amaranth.hdl import unsigned
from amaranth.lib.data import ArrayLayout, StructLayout

from sterna.hw.core.core_params import MAX_SLOTS
from sterna.hw.oldcore.plan.core_params import CoreParams, Stage, program
from sterna.hw.parts.bits import from_ints, signed_bits, signed_elements, to_bits, to_ints
from sterna.hw.units.mac.weight_packing import row_codes, row_starts, row_trits
from sterna.hw.units.weight_rom import WeightRomParams
from sterna.model.quantized import Projection, QuantizedModel
from sterna.model.quantized.records import language_model
from sterna.model.tokens.tokenizer import BYTES, Tokenizer

__all__ = [
    "CoreImage", "build_image", "result_tag_layout", "task_layout", "unpack_image",
    "weight_request_layout"]


@dataclass(frozen=True, slots=True)
class CoreImage:
    """Contents of every memory of a core."""

    params: CoreParams  #: geometry
    #: weight words: the codes of row 0, then those of row 1, and so on, as
    #: :func:`~sterna.hw.units.mac.weight_packing.row_codes` makes them for the style
    weights: list[int]
    #: one word per header: for each row, from what its sum starts; none if all do from 0
    starts: list[int]
    biases: list[int]  #: one word per header: for each row, the bias, signed, ``bias_bits`` wide
    bias_bits: int  #: bits that the model's biases need
    shifts: tuple[int, ...]  #: the shifts of the model's projections, increasing
    embedding: list[list[int]] = field(repr=False)  #: ``[vocab][d]``
    sigmoid: list[int] = field(repr=False)  #: entries of the sigmoid table
    stages: list[int] = field(repr=False)  #: one word per stage, in :attr:`stage_layout`

    @property
    def shift_bits(self) -> int:
        """Bits of the index of a shift."""
        return (len(self.shifts) - 1).bit_length()

    @property
    def stage_layout(self) -> StructLayout:
        """A word of the program."""
        return _stage_layout(self.params, self.shift_bits)

    @property
    def memory_bits(self) -> dict[str, int]:
        """Bits of every read-only memory."""
        params = self.params
        element_bits = signed_bits(np.array(self.embedding))
        return {
            "weights": len(self.weights) * params.weight_bits,
            "starts": len(self.starts) * params.rows * params.mac.start_shape.width,
            "biases": len(self.biases) * params.rows * self.bias_bits,
            "embedding": (params.config.vocab * params.words(params.config.d) * params.rows
                          * element_bits),
            "program": len(self.stages) * self.stage_layout.size,
        }


def build_image(model: QuantizedModel, params: CoreParams) -> CoreImage:
    """Pack a model for a core.

    Raises
    ------
    ValueError
        If the parameters are those of another model shape or profile.
    """
    if (params.config, params.profile) != (model.config, model.profile):
        raise ValueError(
            f"the parameters are for {params.config} in profile {params.profile.name}, the "
            f"model is {model.config} in {model.profile.name}")
    stages = program(params)
    bias_bits = max(
        2, *(signed_bits(p.bias) for p in model.projections.values()))
    shifts = tuple(sorted({p.shift for p in model.projections.values()}))
    layout = _stage_layout(params, (len(shifts) - 1).bit_length())

    weights: list[int] = []
    starts: list[int] = []
    biases: list[int] = []
    words: list[int] = []
    for stage in stages:
        matrices = [model.projections[name] for name in stage.projections]
        padded = np.stack([_pad(p.weight, stage, params) for p in matrices], axis=1)
        # [groups, slots, rows, tiles, cols] with the tiles before the rows is the order of use.
        codes = row_codes(padded.transpose(0, 1, 3, 2, 4), params.style)
        weights += to_ints(to_bits(codes.reshape(stage.beats, -1), params.mac.code_bits))
        if params.mac.start_name:
            begin = row_starts(padded, params.style).reshape(stage.headers, params.rows)
            starts += to_ints(to_bits(begin, params.mac.start_shape.width))
        bias = np.zeros((stage.slots, stage.groups * params.rows), dtype=np.int64)
        bias[:, :stage.rows] = [p.bias for p in matrices]
        rows = bias.reshape(stage.slots, stage.groups, params.rows).transpose(1, 0, 2)
        biases += to_ints(to_bits(rows.reshape(stage.headers, params.rows), bias_bits))
        unused = [0] * (MAX_SLOTS - stage.slots)
        words.append(layout.const({
            "kind": int(stage.kind), "last_slot": stage.slots - 1, "tiles": stage.tiles,
            "headers": stage.headers, "beats": stage.beats,
            "first_weight": stage.first_weight, "first_header": stage.first_header,
            "k": [*(p.k for p in matrices), *unused],
            "shift": [*(shifts.index(p.shift) for p in matrices), *unused],
        }).as_value().value)
    return CoreImage(
        params, weights, starts, biases, bias_bits, shifts, model.embedding.tolist(),
        model.sigmoid.tolist(), words)


def unpack_image(image: CoreImage, tokenizer: Tokenizer = BYTES) -> QuantizedModel:
    """Undo :func:`build_image`: read the model back from the words.

    Of the model an image lacks only the tokenizer, which must fit its vocabulary.

    Raises
    ------
    ValueError
        If a code is no trit, start values are wrong, or the tokenizer does not fit.
    """
    params, layout = image.params, image.stage_layout
    projections: dict[str, Projection] = {}
    for stage, word in zip(program(params), image.stages, strict=True):
        fields = layout.from_bits(word)
        beats = image.weights[fields.first_weight:][:fields.beats]
        headers = slice(fields.first_header, fields.first_header + fields.headers)
        bits = from_ints(beats, 0, params.weight_bits).reshape(-1, params.mac.code_bits)
        codes = bits @ (1 << np.arange(params.mac.code_bits, dtype=np.uint8))
        padded = row_trits(
            codes.reshape(stage.groups, stage.slots, stage.tiles, params.rows, -1),
            params.cols, params.style).transpose(0, 1, 3, 2, 4)
        if params.mac.start_name:
            begin = row_starts(padded, params.style).reshape(stage.headers, params.rows)
            if image.starts[headers] != to_ints(to_bits(begin, params.mac.start_shape.width)):
                raise ValueError(f"{stage.projections[0]}: start values are wrong")
        bias = signed_elements(
            from_ints(image.biases[headers], 0, params.rows * image.bias_bits), image.bias_bits)
        bias = bias.reshape(stage.groups, stage.slots, params.rows)
        for slot, name in enumerate(stage.projections):
            matrix = padded[:, slot].reshape(stage.groups * params.rows, -1)
            projections[name] = Projection(
                np.ascontiguousarray(matrix[:stage.rows, :stage.columns]),
                bias[:, slot].reshape(-1)[:stage.rows].astype(np.int32),
                fields.k[slot], image.shifts[fields.shift[slot]])
    return QuantizedModel(
        language_model(params.config, params.profile), params.profile.name, projections,
        np.array(image.embedding, dtype=np.int32), np.array(image.sigmoid, dtype=np.int32),
        tokenizer=tokenizer)


def _stage_layout(params: CoreParams, shift_bits: int) -> StructLayout:
    stages = program(params)

    def counter(values: list[int]) -> int:
        return max(max(values).bit_length(), 1)

    return StructLayout({
        "kind": 2,
        "last_slot": 2,
        "tiles": counter([stage.tiles for stage in stages]),
        "headers": counter([stage.headers for stage in stages]),
        "beats": counter([stage.beats for stage in stages]),
        "first_weight": counter([stage.first_weight for stage in stages]),
        "first_header": counter([stage.first_header for stage in stages]),
        "k": ArrayLayout(unsigned(params.profile.mantissa_bits), MAX_SLOTS),
        "shift": ArrayLayout(unsigned(shift_bits), MAX_SLOTS),
    })


def _pad(weight: np.ndarray, stage: Stage, params: CoreParams) -> np.ndarray:
    """A matrix filled up with zeros, ``[groups, rows, tiles, cols]``."""
    padded = np.zeros((stage.groups * params.rows, stage.tiles * params.cols), dtype=np.int8)
    padded[:stage.rows, :stage.columns] = weight
    return padded.reshape(stage.groups, params.rows, stage.tiles, params.cols)


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
