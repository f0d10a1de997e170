"""A model as the words of a core's memories, in the order of use, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sterna.hw.core.core_params import MAX_SLOTS, STAGE_PARTS, CoreParams, StageKind
from sterna.hw.parts.bits import from_ints, signed_elements, to_bits, to_ints
from sterna.hw.units.mac.weight_packing import row_codes, row_trits
from sterna.model.config import ModelConfig
from sterna.model.quantized import Projection, QuantizedModel
from sterna.model.quantized.records import language_model
from sterna.model.tokens.tokenizer import BYTES, Tokenizer

__all__ = ["CoreImage", "Stage", "build_image", "program", "unpack_image"]

@dataclass(frozen=True, slots=True)
class CoreImage:
    """The memories of a core that hold a model.

    ``stages``, ``headers``: words of ``params.stage_layout`` and ``params.header_layout``.
    ``weights``: codes of ``rows * cols`` trits, two bits each, row by row. ``embedding``: words of
    ``post_lanes`` elements, those of a token side by side. ``config``: of the model.
    """

    params: CoreParams
    config: ModelConfig
    stages: list[int]
    headers: list[int]
    weights: list[int]
    embedding: list[int]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the program of a token: some matrices of one shape and one input.

    ``groups``: of rows of a matrix. ``chunks`` and ``tiles``: of the vector. ``weight``, ``header``
    and ``state``: where its weight words, groups of biases and words of states begin.
    """

    kind: StageKind
    matrices: tuple[str, ...]
    rows: int
    groups: int
    chunks: int
    tiles: int
    weight: int
    header: int
    state: int

    @property
    def norm(self) -> str:
        """Name of the norm whose vector is multiplied."""
        first = self.matrices[0]
        if self.kind is StageKind.RESIDUAL:
            return f"{first}_norm"
        return f"{first if self.kind is StageKind.HEAD else first.rpartition('.')[0]}.norm"

    @property
    def headers(self) -> int:
        """Groups of rows of all matrices."""
        return self.groups * len(self.matrices)

    @property
    def words(self) -> int:
        """Weight words."""
        return self.headers * self.tiles


def program(config: ModelConfig, params: CoreParams) -> list[Stage]:
    """The stages of a token of a model, in their order: four a layer, and the head."""
    shapes = config.projections()
    named = [(kind, tuple(f"layer{layer}.{part}" for part in parts))
             for layer in range(config.layers) for kind, parts in STAGE_PARTS]
    stages: list[Stage] = []
    weight = header = state = 0
    for kind, names in [*named, (StageKind.HEAD, ("head",))]:
        rows, columns = shapes[names[0]]
        stage = Stage(
            kind, names, rows, params.groups(rows, chunks=kind is not StageKind.HEAD),
            params.groups(columns) * params.rows // params.quant_lanes, -(-columns // params.cols),
            weight, header, state)
        stages.append(stage)
        weight += stage.words
        header += stage.headers
        if kind is StageKind.MLGRU:
            state += stage.groups * params.rows // params.cell_lanes
    return stages


def build_image(model: QuantizedModel, params: CoreParams) -> CoreImage:
    """Pack a model.

    Raises
    ------
    ValueError
        If the model is beyond the limits of ``params``, or of an architecture that the core
        lacks.
    """
    params.limits.check(model)
    if list(model.sigmoid) != model.profile.sigmoid_table():
        raise ValueError("the sigmoid table of the model is not that of its formats")
    low, _ = params.limits.shifts
    layout = params.stage_layout
    stages: list[int] = []
    headers: list[int] = []
    weights: list[int] = []
    for stage in program(model.config, params):
        matrices = [model.projections[name] for name in stage.matrices]
        groups = stage.groups
        padded = np.stack([_filled(each.weight, groups, params) for each in matrices], axis=1)
        # A row beyond the vocabulary has the lowest logit, which loses against every token.
        bias = np.full((len(matrices), groups * params.rows), -(
            1 << params.bias_bits - 1) if stage.kind is StageKind.HEAD else 0)
        bias[:, :stage.rows] = [each.bias for each in matrices]
        unused = [0] * (MAX_SLOTS - len(matrices))
        stages.append(layout.const({
            "kind": int(stage.kind), "last_slot": len(matrices) - 1, "tiles": stage.tiles,
            "chunks": stage.chunks, "headers": stage.headers, "outputs": stage.rows,
            "weight": stage.weight, "header": stage.header, "state": stage.state,
            "k": [*(each.k for each in matrices), *unused],
            "shift": [*(each.shift - low for each in matrices), *unused],
        }).as_value().value)
        # [groups, slots, rows, tiles, cols] with the tiles before the rows is the order of use.
        codes = row_codes(padded.transpose(0, 1, 3, 2, 4), params.style)
        weights += to_ints(to_bits(
            codes.reshape(groups * len(matrices) * padded.shape[3], -1), params.mac.code_bits))
        minus = (padded == -1).sum(axis=(3, 4))
        own = bias.reshape(len(matrices), groups, params.rows).transpose(1, 0, 2)
        fields = [to_bits(each.reshape(-1, 1), bits).reshape(-1, params.post_lanes, bits)
                  for each, bits in ((own, params.bias_bits), (minus, params.minus_bits))]
        headers += to_ints(np.concatenate(fields, axis=2).reshape(-1, params.header_layout.size))
    rows_of = np.zeros(
        (model.config.vocab, params.groups(model.config.d) * params.rows), dtype=np.int64)
    rows_of[:, :model.config.d] = model.embedding
    embedding = to_ints(to_bits(
        rows_of.reshape(-1, params.post_lanes), params.limits.embedding_bits))
    return CoreImage(params, model.config, stages, headers, weights, embedding)


def unpack_image(image: CoreImage, tokenizer: Tokenizer = BYTES) -> QuantizedModel:
    """Undo :func:`build_image`; of the model an image lacks only the tokenizer.

    Raises ValueError if a code is no trit, a number of -1 weights is wrong or the tokenizer does
    not fit.
    """
    params, config, profile = image.params, image.config, image.params.profile
    low, _ = params.limits.shifts
    shapes = config.projections()
    projections: dict[str, Projection] = {}
    for word, stage in zip(image.stages, program(config, params), strict=True):
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
        bias = signed_elements(header[:, :params.bias_bits], params.bias_bits)
        bias = bias.reshape(-1, slots, params.rows)
        for slot, name in enumerate(names):
            rows, columns = shapes[name]
            matrix = padded[slot].reshape(-1, fields.tiles * params.cols)
            projections[name] = Projection(
                np.ascontiguousarray(matrix[:rows, :columns]),
                bias[:, slot].reshape(-1)[:rows].astype(np.int32),
                fields.k[slot], fields.shift[slot] + low)
    size = params.limits.embedding_bits
    elements = from_ints(image.embedding, 0, params.post_lanes * size)
    embedding = signed_elements(elements, size).reshape(config.vocab, -1)
    return QuantizedModel(
        language_model(config, profile), profile.name, projections,
        embedding[:, :config.d].astype(np.int32),
        np.array(profile.sigmoid_table(), dtype=np.int32), tokenizer=tokenizer)


def _filled(weight: np.ndarray, groups: int, params: CoreParams) -> np.ndarray:
    """A matrix filled up with zeros, ``[groups, rows, tiles, cols]``."""
    tiles = -(-weight.shape[1] // params.cols)
    padded = np.zeros((groups * params.rows, tiles * params.cols), dtype=np.int8)
    padded[:weight.shape[0], :weight.shape[1]] = weight
    return padded.reshape(groups, params.rows, tiles, params.cols)


def cluster_words(words: Sequence[int], params: CoreParams, cluster: int) -> list[int]:
    """The codes of a cluster's columns out of weight words, row by row."""
    size = params.cols // params.clusters
    bits = from_ints(words, 0, 2 * params.rows * params.cols).reshape(
        len(words), params.rows, params.clusters, 2 * size)
    return to_ints(np.ascontiguousarray(bits[:, :, cluster]).reshape(len(words), -1))
