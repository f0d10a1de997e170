"""A model as one image for an external memory, read sequentially for each token.

Everything is little-endian, in words of ``port_bits``:

- 16 numbers of 32 bits: :class:`ImageHeader`;
- the stages;
- for each group of rows of each stage, its biases and numbers of -1 weights, then its weights,
  five to a byte;
- for a language model, the embedding: a row for each token, with elements of 8, 16 or 32 bits;
- in the last 32 bits, the CRC-32 of everything before.

Every item begins at a word of the port.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass

import numpy as np

from sterna.hw.core.image.core_image import CoreImage
from sterna.hw.core.image.program import ProgramImage
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.core.params.geometry import IMAGE_HEADER_BITS, Geometry
from sterna.hw.parts.bits import elements_of, from_ints, to_bits, to_ints
from sterna.model.config import ModelConfig
from sterna.model.quantized.plan import shape_of
from sterna.model.quantized.records import language_model

__all__ = [
    "IMAGE_FILE", "MAGIC", "TRITS_PER_BYTE", "VERSION", "ImageHeader", "format_digest",
    "image_text", "pack_image", "read_image"]

IMAGE_FILE = "image.hex"
"""The words behind the port of an emitted unit."""

MAGIC = int.from_bytes(b"STRN", "little")
"""The first 32 bits of an image."""

VERSION = 2
"""Version of the layout that this module describes."""

TRITS_PER_BYTE = 5
"""Weights in a byte."""

_CODES = np.array([0, 1, 3])    # weight code of each digit
_POWERS = 3 ** np.arange(TRITS_PER_BYTE - 1, -1, -1)
_CRC_BYTES = 4


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Header of an image: numbers of 32 bits, padded with zeros.

    ``digest``: :func:`format_digest` of the core. ``words``: words of the port in the whole image.
    ``embedding``: the word where the row of token 0 begins. ``row``: words of a row.
    ``test``: :func:`~sterna.hw.core.image.core_image.text_checksum` of the model. The others are
    counts of the model. Fields that do not apply to a network over frames are 0.
    """

    magic: int
    version: int
    digest: int
    words: int
    embedding: int
    row: int
    stages: int
    d: int = 0
    layers: int = 0
    dff: int = 0
    vocab: int = 0
    test: int = 0

    def to_bytes(self) -> bytes:
        return struct.pack("<12I16x", *astuple(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> ImageHeader:
        return cls(*struct.unpack_from("<12I16x", data))


def format_digest(params: Geometry) -> int:
    """CRC-32 of everything that determines the layout of an image: the limits, the size of the
    array, the lanes and the port; and of the constants outside it. Cores that differ in sequences,
    clusters or style take the same image.
    """
    limits = params.limits
    formats = (
        *sorted(asdict(limits.profile).items()), [astuple(each) for each in limits.program],
        limits.shifts, limits.embedding_bits, *params.layout_sizes, *params.constants)
    return zlib.crc32(repr(formats).encode())


def pack_image(image: ProgramImage) -> bytes:
    """Lay an image out for a port: ``params.port_bits`` is not 0."""
    params = image.params
    port = params.port_bits // 8
    stages = [params.stage_layout.from_bits(word) for word in image.stages]
    parts = [_padded(_to_bytes(image.stages, params.stage_layout.size), params.stage_parts * port)]
    headers = _padded(
        _to_bytes(image.headers, params.header_layout.size), params.header_parts * port,
    ).reshape(-1, params.row_beats * params.header_parts * port)
    weights = _padded(_digits_in_bytes(image), params.weight_parts * port)
    for stage in stages:
        own = weights[stage.weight:][:stage.headers * stage.tiles]
        parts.append(np.concatenate([
            headers[stage.header:][:stage.headers], own.reshape(stage.headers, -1)], axis=1))
    body = b"".join(part.tobytes() for part in parts)
    start = params.image_header_parts + len(body) // port
    counts, table, row = {}, b"", 0
    if isinstance(image, CoreImage):
        config = shape_of(image.plan)
        counts = {"d": config.d, "layers": config.layers, "dff": config.dff,
                  "vocab": config.vocab, "test": image.test}
        table, row = _embedding(image), image.params.row_parts(config.d)
    words = start + len(table) // port + -(-_CRC_BYTES // port)
    header = ImageHeader(
        MAGIC, VERSION, format_digest(params), words, start, row, len(stages), **counts)
    text = header.to_bytes().ljust(params.image_header_parts * port, b"\0") + body + table
    text += bytes(words * port - len(text) - _CRC_BYTES)
    return text + zlib.crc32(text).to_bytes(_CRC_BYTES, "little")


def _embedding(image: CoreImage) -> bytes:
    """A row for each token, its elements widened to whole bytes."""
    params, size = image.params, image.params.limits.embedding_bits
    words = [word for row in image.embedding for word in row]
    elements = elements_of(from_ints(words, 0, params.post_lanes * size), size)
    table = elements.reshape(len(image.embedding), -1).astype(f"<i{params.element_bits // 8}")
    row = params.row_parts(image.plan[0].columns) * params.port_bits // 8
    return _padded(table.view(np.uint8), row).tobytes()


def image_text(image: ProgramImage) -> str:
    """Text of ``IMAGE_FILE``, for ``$readmemh``: one word of the port per line."""
    data, size = pack_image(image), image.params.port_bits // 8
    return "".join(f"{int.from_bytes(data[at:at + size], 'little'):0{2 * size}x}\n"
                   for at in range(0, len(data), size))


def read_image(data: bytes, params: CoreParams) -> CoreImage:
    """Undo :func:`pack_image`.

    Raises ValueError if the image is truncated, damaged, or for a core of other limits.
    """
    port = params.port_bits // 8
    if len(data) < IMAGE_HEADER_BITS // 8:
        raise ValueError(f"an image has {IMAGE_HEADER_BITS // 8} bytes at least, got {len(data)}")
    header = ImageHeader.from_bytes(data)
    for name, expected in (("magic", MAGIC), ("version", VERSION)):
        if getattr(header, name) != expected:
            raise ValueError(f"the {name} of the image is {getattr(header, name):#x}, "
                             f"not {expected:#x}")
    if header.digest != format_digest(params):
        raise ValueError("the image is for a core of other limits, array, lanes or port")
    if header.words * port != len(data):
        raise ValueError(
            f"the image has {len(data):,} bytes, its header says {header.words * port:,}")
    if zlib.crc32(data[:-_CRC_BYTES]) != int.from_bytes(data[-_CRC_BYTES:], "little"):
        raise ValueError("the image is damaged: its CRC-32 is another one")

    words = np.frombuffer(data, dtype=np.uint8).reshape(-1, port)
    at = params.image_header_parts
    table = words[at:at + header.stages * params.stage_parts]
    at += len(table)
    stages = _from_bytes(table.reshape(header.stages, -1), params.stage_layout.size)
    headers: list[int] = []
    weights: list[int] = []
    for word in stages:
        stage = params.stage_layout.from_bits(word)
        of_headers = params.row_beats * params.header_parts
        group = of_headers + stage.tiles * params.weight_parts
        own = words[at:at + stage.headers * group].reshape(stage.headers, group, port)
        at += stage.headers * group
        headers += _from_bytes(
            own[:, :of_headers].reshape(stage.headers * params.row_beats, -1),
            params.header_layout.size)
        weights += _codes_of_bytes(
            own[:, of_headers:].reshape(stage.headers * stage.tiles, -1), params)
    width = params.element_bits // 8
    rows = words[header.embedding:][:header.vocab * header.row].reshape(header.vocab, -1)
    padded = params.groups(header.d) * params.rows
    elements = np.ascontiguousarray(rows[:, :padded * width]).view(f"<i{width}")
    embedding = [to_ints(to_bits(row.reshape(-1, params.post_lanes), params.limits.embedding_bits))
                 for row in elements]
    config = ModelConfig(header.d, header.layers, header.dff, header.vocab)
    return CoreImage(params, stages, headers, weights, language_model(config, params.profile),
                     embedding, header.test)


def _to_bytes(words: Sequence[int], bits: int) -> np.ndarray:
    """Words as bytes; uint8 ``[words, bytes]``."""
    size = -(-bits // 8)
    return np.frombuffer(
        b"".join(word.to_bytes(size, "little") for word in words), dtype=np.uint8,
    ).reshape(len(words), size)


def _from_bytes(data: np.ndarray, bits: int) -> list[int]:
    mask = (1 << bits) - 1
    return [int.from_bytes(row.tobytes(), "little") & mask for row in data]


def _padded(data: np.ndarray, size: int) -> np.ndarray:
    return np.pad(data, ((0, 0), (0, size - data.shape[1])))


def _digits_in_bytes(image: ProgramImage) -> np.ndarray:
    """Five weights to a byte, the first in the most significant digit; uint8 ``[words, bytes]``.

    The byte is the fraction of the digits in units of 1/256, rounded up: the digits are the
    carries out of it under repeated multiplication by three.
    """
    size = image.params.rows * image.params.cols
    codes = from_ints(image.weights, 0, 2 * size).reshape(len(image.weights), size, 2)
    digits = codes[:, :, 0].astype(np.int64) + codes[:, :, 1]
    filled = np.pad(digits, ((0, 0), (0, -size % TRITS_PER_BYTE)))
    values = filled.reshape(len(digits), -1, TRITS_PER_BYTE) @ _POWERS
    return (-(-values * 256 // 3 ** TRITS_PER_BYTE)).astype(np.uint8)


def _codes_of_bytes(data: np.ndarray, params: CoreParams) -> list[int]:
    """Undo :func:`_digits_in_bytes`: weight words of codes."""
    size = params.rows * params.cols
    left = data.astype(np.int64)
    digits = np.empty((*data.shape, TRITS_PER_BYTE), dtype=np.int64)
    for place in range(TRITS_PER_BYTE):
        left = left * 3
        digits[:, :, place] = left >> 8
        left &= 255
    codes = _CODES[digits.reshape(len(data), -1)[:, :size]]
    return to_ints(to_bits(codes, 2))
