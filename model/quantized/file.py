"""The quantised model file: the interface between training and everything else.

Integers only: its users need no torch and recompute no scale. docs/file-format.md describes the
bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from sterna.model.checks import check_fields
from sterna.model.config import ModelConfig
from sterna.model.files import check_unpublished, write_atomically
from sterna.model.profile import FixedPoint, NumericProfile, profile_of
from sterna.model.quantized.bounds import check_bounds
from sterna.model.quantized.bundled import BUNDLED, bundled_path
from sterna.model.quantized.entry import Entry, frame_integers
from sterna.model.quantized.plan import StagePlan, formats_of, plan, shape_of
from sterna.model.quantized.records import (
    Add,
    Embedding,
    Input,
    Project,
    Projection,
    Record,
    Recur,
    Sigmoid,
    records_from_json,
    records_to_json,
)
from sterna.model.tokens.bpe import BytePairTokenizer
from sterna.model.tokens.files import fitted, tokenizer_from_json
from sterna.model.tokens.hub import HubTokenizer
from sterna.model.tokens.tokenizer import BYTES, Tokenizer

__all__ = ["FORMAT_VERSION", "QuantizedFileError", "QuantizedModel",
           "load_language_model", "load_model", "pack_trits", "unpack_trits"]

FORMAT_VERSION = 3
_FORMAT = "sterna quantised model"
_HEADER_KEY = "sterna"
_HEADER_FIELDS = ("format", "version", "records", "profile", "tokenizer", "provenance")
_MERGES, _JSON = "tokenizer.merges", "tokenizer.json"
_OTHER_FILES = {
    ".onnx": "; an ONNX file is made from a quantised model: give that one",
    ".pt": "; a checkpoint has to be quantised first: sterna quantize",
}
"""Advice for other files of Sterna."""


class QuantizedFileError(ValueError):
    """A quantised model file that cannot be used; the message says which and why."""


@dataclass(frozen=True)
class QuantizedModel:
    """A MatMul-free model in integers: a language model, or a network over frames of a sensor.

    Parameters
    ----------
    records
        The steps that compute a token; or a frame, if they begin with an
        :class:`~sterna.model.quantized.records.Input` instead of an embedding.
    profile_name
        Name of the formats in the records: S16, C12, P24.
    projections
        Every ternary matrix, with the names and in the order of the records.
    table
        int16 or int32 ``[vocab, width]`` of the embedding, in the format of its record; None for a
        network.
    sigmoid
        int16 or int32 table, as :func:`~sterna.model.profile.sigmoid_table` defines it.
    provenance
        Origin of the model: corpus, training, held-out figures, versions (JSON).
    tokenizer
        Converts between text and tokens; bytes by default, of which a model may know fewer than
        256. Ignored for a network.
    vectors
        int16 or int32 ``[width]`` of every :class:`~sterna.model.quantized.records.Scale`, by
        name, or ``[channels]`` of an :class:`~sterna.model.quantized.records.Input`.

    Raises
    ------
    ValueError
        If a tensor does not have the shape, type or range that its record requires, the tokenizer
        has another number of tokens, or a value could exceed the exact range of float64
        (:mod:`sterna.model.quantized.bounds`).
    """

    records: tuple[Record, ...]
    profile_name: str
    projections: dict[str, Projection]
    table: np.ndarray | None
    sigmoid: np.ndarray
    provenance: dict[str, Any] = field(default_factory=dict)
    tokenizer: Tokenizer = BYTES
    vectors: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first, last = self.records[0], self.records[-1]
        entry = Entry.of(self.records)
        if not isinstance(last, Project | Add):
            raise ValueError("the last record must be a project or an add")
        if isinstance(first, Embedding):
            object.__setattr__(self, "tokenizer", fitted(self.tokenizer, first.vocab))
            _check("embedding", self.embedding, (first.vocab, first.width), first.output)
        vectors = _vectors_of(self.records)
        if list(self.projections) != list(self.projects):
            raise ValueError(
                f"projections must be {list(self.projects)}, got {list(self.projections)}")
        if list(self.vectors) != list(vectors):
            raise ValueError(f"vectors must be {list(vectors)}, got {list(self.vectors)}")
        for name, project in self.projects.items():
            _check_projection(project, self.projections[name])
        for name, (width, low, high) in vectors.items():
            _check_range(name, self.vectors[name], (width,), low, high)
        if len({(each.width, each.output.bits) for each in self.states}) != 1:
            raise ValueError("there must be states, all of the same width and number of bits")
        tables = {(each.z, each.frac, each.step_bits) for each in self.records
                  if isinstance(each, Sigmoid)}
        if len(tables) > 1:
            raise ValueError("all sigmoids must have the same format and table")
        if any(each.complement and not each.step_bits for each in self.records
               if isinstance(each, Sigmoid)):
            raise ValueError("a complement needs a table that is interpolated")
        for z, frac, step_bits in tables:
            entries = (1 << (z.bits - step_bits)) + (step_bits > 0)
            _check_range("sigmoid", self.sigmoid, (entries,), 0, (1 << frac) - 1)
        if np.any(np.diff(self.sigmoid) < 0):
            raise ValueError("sigmoid must not decrease from one entry to the next")
        check_bounds(self.records, self.projections, entry.reach, self.vectors)

    @cached_property
    def entry(self) -> Entry:
        """Its input at every step: tokens, or frames."""
        return Entry.of(self.records)

    @property
    def is_network(self) -> bool:
        """Whether it takes frames."""
        return isinstance(self.records[0], Input)

    @property
    def embedding(self) -> np.ndarray:
        """int16 or int32 ``[vocab, width]``; ValueError for a network, which has none."""
        self.entry.check_text()
        assert self.table is not None
        return self.table

    @property
    def vocab(self) -> int:
        """Number of tokens; ValueError for a network."""
        return len(self.embedding)

    @property
    def row(self) -> FixedPoint:
        """Format of the first vector."""
        first = self.records[0]
        assert isinstance(first, Embedding | Input)
        return first.output

    @property
    def logit(self) -> FixedPoint:
        """Format of the logits, or of the results of a network."""
        last = self.records[-1]
        assert isinstance(last, Project | Add)
        return last.output

    @property
    def fraction_bits(self) -> np.ndarray:
        """Fraction bits per channel of a frame, int ``[channels]``; ValueError for a language
        model."""
        if not self.is_network:
            raise ValueError("a language model, which takes tokens and no frames")
        return self.vectors[f"{self.records[0].name}.frac"]

    def integers(self, frames: Any) -> tuple[np.ndarray, int]:
        """Real frames ``[..., channels]`` as the integers of a network, int64, rounded half up and
        clipped; and the number of clipped values.

        Raises ValueError if a frame has the wrong length, a number is not finite, or the model is a
        language model.
        """
        first, frac = self.records[0], self.fraction_bits
        assert isinstance(first, Input)
        return frame_integers(frames, frac, first.bits)

    @cached_property
    def projects(self) -> dict[str, Project]:
        """The records of its ternary matrices, by name."""
        return {each.name: each for each in self.records if isinstance(each, Project)}

    @cached_property
    def states(self) -> list[Recur]:
        """The recurrences; the states of all layers have the same width and number of bits."""
        return [each for each in self.records if isinstance(each, Recur)]

    @property
    def is_own(self) -> bool:
        """Whether the model is a network, or of Sterna's own architecture."""
        try:
            return self.is_network or bool(self.config)
        except ValueError:
            return False

    @cached_property
    def config(self) -> ModelConfig:
        """The shape of a language model of Sterna's own architecture; ValueError for another
        architecture or a network."""
        self.entry.check_text()
        stages = self.stages
        try:
            return shape_of(stages)
        except ValueError as error:
            raise self._foreign(error) from error

    @cached_property
    def profile(self) -> NumericProfile:
        """Its formats; ValueError as for :attr:`stages`."""
        try:
            if self.is_network:
                return replace(profile_of(self.profile_name), logit=self.logit)
            return formats_of(self.records, self.profile_name)
        except ValueError as error:
            raise self._foreign(error) from error

    @cached_property
    def stages(self) -> tuple[StagePlan, ...]:
        """The stages that compute a token or a frame; ValueError if the hardware does not support
        these records."""
        profile = self.profile
        try:
            return plan(self.records, profile)
        except ValueError as error:
            raise self._foreign(error) from error

    def _foreign(self, error: ValueError) -> ValueError:
        return ValueError(
            f"no unit computes these layers in this order: {error}" if self.is_network else
            f"a model of another architecture than Sterna's own, such as hgrn_bit of a converted "
            f"checkpoint, has no gateware: {error}")

    def to_bytes(self) -> bytes:
        """Serialise; the same model gives the same bytes."""
        tensors = {"sigmoid": _narrowest(self.sigmoid)}
        if self.table is not None:
            tensors["embedding"] = _narrowest(self.table)
        for name, projection in self.projections.items():
            tensors[f"{name}.weight"] = pack_trits(projection.weight)
            tensors[f"{name}.bias"] = _narrowest(projection.bias)
            tensors[f"{name}.scale"] = np.array(
                [projection.k, projection.shift], dtype=np.int32)
        for name, vector in self.vectors.items():
            tensors[f"{name}.vector"] = _narrowest(vector)
        header: dict[str, Any] = {
            "format": _FORMAT,
            "version": FORMAT_VERSION,
            "records": records_to_json(self.records),
            "profile": self.profile_name,
            "tokenizer": None,
            "provenance": self.provenance,
        }
        # As tensors, because text would make the header of a large vocabulary too long to parse
        # before a reader knows the kind of file.
        if not self.is_network:
            tokenizer = header["tokenizer"] = self.tokenizer.to_json()
            match self.tokenizer:
                case BytePairTokenizer():
                    del tokenizer["merges"]
                    tensors[_MERGES] = self.tokenizer.merges
                case HubTokenizer():
                    text = tokenizer.pop("json")
                    tensors[_JSON] = np.frombuffer(text.encode(), dtype=np.uint8)
        header["sha256"] = _digest(tensors, header)
        # One metadata entry only: the library does not preserve the order of several.
        text = json.dumps(header, sort_keys=True, separators=(",", ":"))
        return bytes(save_safetensors(tensors, metadata={_HEADER_KEY: text}))

    def save(self, path: str | Path) -> Path:
        """Write the file (to a temporary name, then renamed) and return its path."""
        return write_atomically(Path(path), self.to_bytes())

    @property
    def sha256(self) -> str:
        """SHA-256 of the serialised model."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def load_model(source: str | Path) -> QuantizedModel:
    """Read and validate a quantised model.

    Parameters
    ----------
    source
        Path of a file, or the name of a bundled model (``tiny``, ``tiny-c12``, ``micro``,
        ``tiny-bpe``).

    Raises
    ------
    QuantizedFileError
        If the file cannot be read, is not a quantised model, is damaged, or was written by an
        unknown version.
    """
    path = Path(source)
    if str(source) in BUNDLED:
        path = bundled_path(str(source))
    try:
        blob = path.read_bytes()
    except OSError as error:
        check_unpublished(path, QuantizedFileError)
        known = ", ".join(BUNDLED)
        raise QuantizedFileError(
            f"{path}: cannot read the quantised model ({error.strerror or error}); "
            f"give a file or a bundled name ({known})") from error
    try:
        return _parse(blob)
    except (ValueError, TypeError, KeyError) as error:
        hint = _OTHER_FILES.get(path.suffix, "")
        raise QuantizedFileError(f"{path}: {error}{hint}") from error


def load_language_model(source: str | Path) -> QuantizedModel:
    """:func:`load_model`, also refusing a network over frames."""
    model = load_model(source)
    try:
        model.entry.check_text()
    except ValueError as error:
        raise QuantizedFileError(f"{source}: {error}") from error
    return model


def _parse(blob: bytes) -> QuantizedModel:
    header = _read_header(blob)
    if header.get("format") != _FORMAT:
        raise ValueError(f"not a Sterna quantised model, but {header.get('format')!r}")
    if header.get("version") != FORMAT_VERSION:
        raise ValueError(
            f"the file has format version {header.get('version')!r}, this Sterna reads version "
            f"{FORMAT_VERSION}")
    try:
        tensors = load_safetensors(blob)
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"the file is truncated or damaged ({error})") from error
    recorded = header.pop("sha256", None)
    if recorded != _digest(tensors, header):
        raise ValueError("the checksum does not match: the file was damaged or edited")
    # Unknown fields are ignored: a field that matters requires a new version.
    known = {name: header[name] for name in _HEADER_FIELDS if name in header}
    check_fields("the header", known, _HEADER_FIELDS)
    if not isinstance(header["provenance"], dict):
        raise ValueError(f"provenance must be an object, got {header['provenance']!r}")
    if not isinstance(header["profile"], str):
        raise ValueError(f"profile must be a name, got {header['profile']!r}")
    records = records_from_json(header["records"])
    has_text = not Entry.of(records).shape
    tokenizer = _read_tokenizer(header, tensors) if has_text else BYTES
    projects = {each.name: each for each in records if isinstance(each, Project)}
    vectors = _vectors_of(records)
    wanted = {"sigmoid"} | ({"embedding"} if has_text else set()) | {
        f"{name}.vector" for name in vectors} | {
        f"{name}.{part}" for name in projects for part in ("weight", "bias", "scale")}
    if set(tensors) != wanted:
        odd = sorted(set(tensors) ^ wanted)
        raise ValueError(f"missing or unknown tensors: {', '.join(odd[:4])}")
    projections = {}
    for name, record in projects.items():
        scale = tensors[f"{name}.scale"]
        if scale.shape != (2,) or scale.dtype.kind != "i":
            raise ValueError(
                f"{name}.scale must be the integers (k, shift), got {scale.dtype} {scale.shape}")
        try:
            weight = unpack_trits(tensors[f"{name}.weight"], (record.rows, record.columns))
        except ValueError as error:
            raise ValueError(f"{name}.weight: {error}") from error
        projections[name] = Projection(
            weight, tensors[f"{name}.bias"], int(scale[0]), int(scale[1]))
    return QuantizedModel(
        records, header["profile"], projections, tensors.get("embedding"), tensors["sigmoid"],
        header["provenance"], tokenizer, {name: tensors[f"{name}.vector"] for name in vectors})


def _vectors_of(records: Sequence[Record]) -> dict[str, tuple[int, int, int]]:
    """The stored vectors of records: length, smallest and largest number."""
    return {name: limits for each in records for name, limits in each.vectors.items()}


def _read_tokenizer(header: dict[str, Any], tensors: dict[str, np.ndarray]) -> Tokenizer:
    """The tokenizer of a file, with its merges from the tensors."""
    content = header["tokenizer"]
    if isinstance(content, dict):
        stored = _JSON if content.get("kind") == HubTokenizer.kind else _MERGES
        if stored not in tensors:
            raise ValueError(f"missing tensors: {stored}")
        value = tensors.pop(stored)
        content = {**content, stored.removeprefix("tokenizer."):
                   value.tobytes().decode() if stored == _JSON else value}
    return tokenizer_from_json(content)


def _read_header(blob: bytes) -> dict[str, Any]:
    """The JSON header, read before the tensors to distinguish an unknown version from damage."""
    size = int.from_bytes(blob[:8], "little")
    try:
        if len(blob) < 8 or size > len(blob) - 8:
            raise ValueError
        header = json.loads(json.loads(blob[8:8 + size])["__metadata__"][_HEADER_KEY])
        if not isinstance(header, dict):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("not a Sterna quantised model (or cut off in its header)") from error
    return header


def _digest(tensors: dict[str, np.ndarray], header: dict[str, Any]) -> str:
    """SHA-256 over the header (without its own checksum) and every tensor by name."""
    sha = hashlib.sha256()
    kept = {key: value for key, value in header.items() if key != "sha256"}
    sha.update(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode())
    for name in sorted(tensors):
        value = tensors[name]
        sha.update(f"\n{name} {value.dtype.str} {value.shape}\n".encode())
        sha.update(np.ascontiguousarray(value).tobytes())
    return sha.hexdigest()


def _narrowest(values: np.ndarray) -> np.ndarray:
    """The values as int16 if they fit, else int32."""
    fits = values.min() >= -(1 << 15) and values.max() < (1 << 15)
    return np.ascontiguousarray(values, dtype=np.int16 if fits else np.int32)


def _check(name: str, values: np.ndarray, shape: tuple[int, ...], fmt: FixedPoint) -> None:
    _check_range(name, values, shape, fmt.min, fmt.max)


def _check_range(
    name: str, values: np.ndarray, shape: tuple[int, ...], low: int, high: int,
) -> None:
    if not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"{name} must hold integers, got {values.dtype}")
    if values.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {values.shape}")
    if values.min() < low or values.max() > high:
        raise ValueError(
            f"{name} must be from {low} to {high}, got {values.min()} to {values.max()}")


def _check_projection(record: Project, projection: Projection) -> None:
    name, bits = record.name, record.mantissa_bits
    _check_range(f"{name}.weight", projection.weight, (record.rows, record.columns), -1, 1)
    # One bit more than the output, so that a bias alone can saturate.
    limit = 1 << record.output.bits
    _check_range(f"{name}.bias", projection.bias, (record.rows,), -limit, limit - 1)
    low, high = 1 << (bits - 1), (1 << bits) - 1
    if not low <= projection.k <= high:
        raise ValueError(f"{name}: k must be from {low} to {high}, got {projection.k}")
    if not 1 <= projection.shift <= NumericProfile.max_shift:
        raise ValueError(
            f"{name}: shift must be from 1 to {NumericProfile.max_shift}, got {projection.shift}")


# Packing ------------------------------------------------------------------------------


def pack_trits(weight: np.ndarray) -> np.ndarray:
    """Pack -1, 0, 1 into bytes: 2-bit two's complement, 4 per byte, first in the low bits.

    Row-major over the whole matrix; the last byte is padded with zeros. Returns uint8.

    >>> pack_trits(np.array([[1, 0, -1, 1, -1]], dtype=np.int8)).tolist()
    [113, 3]
    """
    codes = np.asarray(weight, dtype=np.int8).reshape(-1).view(np.uint8) & 3
    first, second, third, fourth = np.pad(codes, (0, -codes.size % 4)).reshape(-1, 4).T
    return first | second << 2 | third << 4 | fourth << 6


_TRITS = np.array([[(0, 1, 2, -1)[byte >> at & 3] for at in (0, 2, 4, 6)] for byte in range(256)],
                  dtype=np.int8)
"""The trits of each byte, 2 for an invalid code."""


def unpack_trits(packed: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Undo :func:`pack_trits`; int8 of ``shape``.

    Raises ValueError if the size is wrong, a code is 2 (no trit) or the padding is not zero.
    """
    count = shape[0] * shape[1]
    if packed.dtype != np.uint8 or packed.shape != (-(-count // 4),):
        raise ValueError(
            f"{count} trits take {-(-count // 4)} uint8, got {packed.dtype} {packed.shape}")
    trits = _TRITS[packed].reshape(-1)
    bad = np.flatnonzero(trits == 2)
    if bad.size:
        raise ValueError(f"trit {bad[0]} has code 2; only 0, 1 and 3 are trits")
    if trits[count:].any():
        raise ValueError("the filling after the last trit is not zero")
    return trits[:count].reshape(shape)
