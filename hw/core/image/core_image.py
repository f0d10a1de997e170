"""Convert a model to the words of a core's memories, in the order of use, and back."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from sterna.hw.core.image.program import ProgramImage, pack_program, place_stages
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.parts.bits import elements_of, from_ints, to_bits, to_ints
from sterna.hw.units.mac.weight_packing import row_trits
from sterna.model.quantized import Projection, QuantizedModel
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.plan import StagePlan, plan
from sterna.model.quantized.records import Record
from sterna.model.tokens.tokenizer import BYTES, Tokenizer

__all__ = ["CoreImage", "build_image", "text_checksum", "unpack_image"]

_TEST_TOKENS = 16


@dataclass(frozen=True, slots=True)
class CoreImage(ProgramImage):
    """The memories of a core that hold a model.

    ``records``: of the model. ``embedding``: for each token, words of ``post_lanes`` elements.
    ``test``: :func:`text_checksum` of the model.
    """

    params: CoreParams
    records: tuple[Record, ...]
    embedding: list[list[int]]
    test: int

    @property
    def plan(self) -> tuple[StagePlan, ...]:
        """The stages of a token."""
        return plan(self.records, self.params.profile)


def build_image(model: QuantizedModel, params: CoreParams) -> CoreImage:
    """Pack a model.

    Raises
    ------
    ValueError
        If the model exceeds the limits of ``params``, or the core does not support its
        architecture.
    """
    params.limits.check(model)
    if list(model.sigmoid) != model.profile.sigmoid_table():
        raise ValueError("the sigmoid table of the model is not that of its formats")
    # A row beyond the vocabulary has the lowest logit, which loses against every token.
    image = pack_program(place_stages(model.stages, params), model.projections, params,
                         head_fill=-(1 << params.bias_bits - 1))
    width = model.stages[0].columns
    rest = params.groups(width) * params.rows - width
    rows_of = np.pad(model.embedding, ((0, 0), (0, rest))).reshape(
        model.vocab, -1, params.post_lanes)
    embedding = [to_ints(to_bits(row, params.limits.embedding_bits)) for row in rows_of]
    return CoreImage(params, image.stages, image.headers, image.weights, model.records, embedding,
                     text_checksum(model))


def text_checksum(model: QuantizedModel) -> int:
    """CRC-32 of the 16 tokens, 32 bits each, that a model greedily generates after token 0: it
    allows checking that an image computes correctly."""
    reference = IntegerModel(model)
    state, token, text = reference.start(1), 0, []
    for _ in range(_TEST_TOKENS):
        logits, state = reference.step(np.array([token]), state)
        token = int(logits[0].argmax())
        text.append(token)
    return zlib.crc32(np.array(text, dtype="<u4").tobytes())


def unpack_image(image: CoreImage, tokenizer: Tokenizer = BYTES) -> QuantizedModel:
    """Undo :func:`build_image`; an image lacks only the tokenizer of the model.

    Raises ValueError if a code is no trit, a number of -1 weights is wrong, the tokenizer does not
    fit, or the generated text does not match the test.
    """
    params, profile = image.params, image.params.profile
    low, _ = params.limits.shifts
    projections: dict[str, Projection] = {}
    for word, stage in zip(image.stages, image.plan, strict=True):
        names = stage.matrices
        fields = params.stage_layout.from_bits(word)
        slots = fields.last_slot + 1
        beats = image.weights[fields.weight:][:fields.headers * fields.tiles]
        size = params.mac.code_bits
        bits = from_ints(beats, 0, 2 * params.rows * params.cols).reshape(-1, size)
        codes = bits @ (1 << np.arange(size, dtype=np.uint8))
        padded = row_trits(codes.reshape(
            fields.headers // slots, slots, fields.tiles, params.rows, -1), params.cols,
            params.style).transpose(1, 0, 3, 2, 4)
        words = image.headers[fields.header * params.row_beats:][
            :fields.headers * params.row_beats]
        size = params.bias_bits + params.minus_bits
        header = from_ints(words, 0, params.header_layout.size).reshape(-1, size)
        minus = header[:, params.bias_bits:] @ (1 << np.arange(params.minus_bits))
        count = (padded == -1).sum(axis=(3, 4)).transpose(1, 0, 2).ravel()
        if (minus != count).any():
            raise ValueError(f"{names[0]}: a number of -1 weights is wrong")
        bias = elements_of(header[:, :params.bias_bits], params.bias_bits)
        bias = bias.reshape(-1, slots, params.rows)
        for slot, name in enumerate(names):
            matrix = padded[slot].reshape(-1, fields.tiles * params.cols)
            projections[name] = Projection(
                np.ascontiguousarray(matrix[:stage.rows, :stage.columns]),
                bias[:, slot].reshape(-1)[:stage.rows].astype(np.int32),
                fields.k[slot], fields.shift[slot] + low)
    size = params.limits.embedding_bits
    words = [word for row in image.embedding for word in row]
    elements = elements_of(from_ints(words, 0, params.post_lanes * size), size)
    embedding = elements.reshape(len(image.embedding), -1)[:, :image.plan[0].columns]
    model = QuantizedModel(
        image.records, profile.name, projections, embedding.astype(np.int32),
        np.array(profile.sigmoid_table(), dtype=np.int32), tokenizer=tokenizer)
    if text_checksum(model) != image.test:
        raise ValueError("the model of the image writes another text than that of its test")
    return model
