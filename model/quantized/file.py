"""The quantised model file: the hinge between training and everything else.

Integers only. Whoever holds one of these files needs no torch and recomputes no scale.
docs/file-format.md describes the bytes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from sterna.model.checks import check_fields
from sterna.model.config import SIZES, ModelConfig
from sterna.model.files import write_atomically
from sterna.model.profile import NumericProfile
from sterna.model.quantized.bundled import BUNDLED, bundled_path
from sterna.model.quantized.records import Record, language_model
from sterna.model.tokens.bpe import BytePairTokenizer
from sterna.model.tokens.files import fitted, tokenizer_from_json
from sterna.model.tokens.tokenizer import BYTES, ByteTokenizer, Tokenizer

__all__ = ["FORMAT_VERSION", "Projection", "QuantizedFileError", "QuantizedModel", "load_model",
           "pack_trits", "unpack_trits"]

FORMAT_VERSION = 2
"""Of a file with a tokenizer. Models of bytes are written as version 1, whose readers read them."""
_BYTES_VERSION = 1
_FORMAT = "sterna quantised model"
_HEADER_KEY = "sterna"
_HEADER_FIELDS = ("format", "version", "config", "profile", "tokenizer", "provenance")
_MERGES = "tokenizer.merges"
_OTHER_FILES = {
    ".onnx": "; an ONNX file is made from a quantised model: give that one",
    ".pt": "; a checkpoint has to be quantised first: sterna quantize",
}
"""What to do with other files of Sterna."""


class QuantizedFileError(ValueError):
    """A quantised model file that cannot be used; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Projection:
    """One ternary matrix with its scale and bias.

    Parameters
    ----------
    weight
        int8 ``[rows, columns]`` of -1, 0 and 1.
    bias
        int16 or int32 ``[rows]`` in the format of the projection's output; zeros in the
        head of a trained model.
    k, shift
        Mantissa and right shift of the weight scale: ``z = rs(acc * A, shift) + bias``
        with ``A = rs(V * k, profile.combine_shift)``.
    """

    weight: np.ndarray
    bias: np.ndarray
    k: int
    shift: int


@dataclass(frozen=True, slots=True)
class QuantizedModel:
    """A MatMul-free language model in integers.

    Parameters
    ----------
    config, profile
        Shape and numeric formats.
    projections
        Every ternary matrix, by the names and in the order of ``config.projections()``.
    embedding
        int16 or int32 ``[vocab, d]`` in format ``profile.x``.
    sigmoid
        int16 or int32 table, as ``profile.sigmoid_table()`` defines it.
    provenance
        Where the model comes from: corpus, training, held-out figures, versions (JSON).
    tokenizer
        Between text and the tokens of the vocabulary; bytes by default, of which a model may know
        fewer than 256.

    Raises
    ------
    ValueError
        If a tensor does not have the shape, type or range that shape and profile ask for, or the
        tokenizer has another number of tokens.
    """

    config: ModelConfig
    profile: NumericProfile
    projections: dict[str, Projection]
    embedding: np.ndarray
    sigmoid: np.ndarray
    provenance: dict[str, Any] = field(default_factory=dict)
    tokenizer: Tokenizer = BYTES

    def __post_init__(self) -> None:
        self.config.check_integer_form()
        object.__setattr__(self, "tokenizer", fitted(self.tokenizer, self.config.vocab))
        shapes = self.config.projections()
        if list(self.projections) != list(shapes):
            raise ValueError(
                f"projections must be {list(shapes)}, got {list(self.projections)}")
        for name, (rows, columns) in shapes.items():
            _check_projection(name, self.projections[name], rows, columns, self.profile)
        x = self.profile.x
        _check("embedding", self.embedding, (self.config.vocab, self.config.d), x.min, x.max)
        entries = len(self.profile.sigmoid_table())
        _check("sigmoid", self.sigmoid, (entries,), 0, self.profile.sigmoid_max)
        if np.any(np.diff(self.sigmoid) < 0):
            raise ValueError("sigmoid must not decrease from one entry to the next")

    @property
    def vectors(self) -> dict[str, np.ndarray]:
        return {}

    @property
    def records(self) -> tuple[Record, ...]:
        """What a token goes through, step by step."""
        return language_model(self.config, self.profile)

    def to_bytes(self) -> bytes:
        """Serialise; the same model gives the same bytes."""
        tensors: dict[str, np.ndarray] = {
            "embedding": _narrowest(self.embedding),
            "sigmoid": _narrowest(self.sigmoid),
        }
        for name, projection in self.projections.items():
            tensors[f"{name}.weight"] = pack_trits(projection.weight)
            tensors[f"{name}.bias"] = _narrowest(projection.bias)
            tensors[f"{name}.scale"] = np.array(
                [projection.k, projection.shift], dtype=np.int32)
        header = {
            "format": _FORMAT,
            "version": _BYTES_VERSION,
            "config": self.config.to_json(),
            "profile": asdict(self.profile),
            "tokenizer": self.tokenizer.to_json(),
            "provenance": self.provenance,
        }
        if isinstance(self.tokenizer, BytePairTokenizer):
            header["version"] = FORMAT_VERSION
            # A tensor, as text would make the header of a large vocabulary longer than a reader
            # wants to parse before it knows what the file is.
            del header["tokenizer"]["merges"]
            tensors[_MERGES] = self.tokenizer.merges
        header["sha256"] = _digest(tensors, header)
        # One metadata entry only: the library does not keep an order between several.
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
        If the file cannot be read, is no quantised model, is damaged, or was written by a
        version this one does not know.
    """
    path = Path(source)
    if str(source) in BUNDLED:
        path = bundled_path(str(source))
    try:
        blob = path.read_bytes()
    except OSError as error:
        known = ", ".join(BUNDLED)
        raise QuantizedFileError(
            f"{path}: cannot read the quantised model ({error.strerror or error}); "
            f"give a file or a bundled name ({known})") from error
    try:
        return _parse(blob)
    except (ValueError, TypeError, KeyError) as error:
        hint = _OTHER_FILES.get(path.suffix, "")
        raise QuantizedFileError(f"{path}: {error}{hint}") from error


def _parse(blob: bytes) -> QuantizedModel:
    header = _read_header(blob)
    if header.get("format") != _FORMAT:
        raise ValueError(f"not a Sterna quantised model, but {header.get('format')!r}")
    if header.get("version") not in (_BYTES_VERSION, FORMAT_VERSION):
        raise ValueError(
            f"the file has format version {header.get('version')!r}, this Sterna reads "
            f"the versions {_BYTES_VERSION} and {FORMAT_VERSION}")
    try:
        tensors = load_safetensors(blob)
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"the file is truncated or damaged ({error})") from error
    recorded = header.pop("sha256", None)
    if recorded != _digest(tensors, header):
        raise ValueError("the checksum does not match: the file was damaged or edited")
    # Unknown fields are ignored: a field that matters comes with a new version.
    known = {name: header[name] for name in _HEADER_FIELDS if name in header}
    check_fields("the header", known, _HEADER_FIELDS)
    if not isinstance(header["provenance"], dict):
        raise ValueError(f"provenance must be an object, got {header['provenance']!r}")
    check_fields("config", header["config"], SIZES)
    config = ModelConfig(**header["config"])
    profile = NumericProfile.from_json(header["profile"])
    tokenizer = _read_tokenizer(header, tensors, config.vocab)
    wanted = {"embedding", "sigmoid"} | {
        f"{name}.{part}" for name in config.projections()
        for part in ("weight", "bias", "scale")}
    if set(tensors) != wanted:
        odd = sorted(set(tensors) ^ wanted)
        raise ValueError(f"missing or unknown tensors: {', '.join(odd[:4])}")
    projections = {}
    for name, shape in config.projections().items():
        scale = tensors[f"{name}.scale"]
        if scale.shape != (2,) or scale.dtype.kind != "i":
            raise ValueError(
                f"{name}.scale must be the integers (k, shift), got {scale.dtype} {scale.shape}")
        try:
            weight = unpack_trits(tensors[f"{name}.weight"], shape)
        except ValueError as error:
            raise ValueError(f"{name}.weight: {error}") from error
        projections[name] = Projection(
            weight, tensors[f"{name}.bias"], int(scale[0]), int(scale[1]))
    return QuantizedModel(
        config, profile, projections, tensors["embedding"], tensors["sigmoid"],
        header["provenance"], tokenizer)


def _read_tokenizer(
    header: dict[str, Any], tensors: dict[str, np.ndarray], vocab: int,
) -> Tokenizer:
    """The tokenizer of a file, whose merges are taken from the tensors."""
    content = header["tokenizer"]
    if header["version"] == _BYTES_VERSION and content != ByteTokenizer.kind:
        raise ValueError(f"tokenizer must be {ByteTokenizer.kind!r}, got {content!r}")
    if isinstance(content, dict):
        if _MERGES not in tensors:
            raise ValueError(f"missing tensors: {_MERGES}")
        content = {**content, "merges": tensors.pop(_MERGES)}
    return tokenizer_from_json(content, vocab)


def _read_header(blob: bytes) -> dict[str, Any]:
    """The JSON header, read before the tensors so that a version is told from damage."""
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


def _check(name: str, values: np.ndarray, shape: tuple[int, ...], low: int, high: int) -> None:
    if not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"{name} must hold integers, got {values.dtype}")
    if values.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {values.shape}")
    if values.min() < low or values.max() > high:
        raise ValueError(
            f"{name} must be from {low} to {high}, got {values.min()} to {values.max()}")


def _check_projection(
    name: str, projection: Projection, rows: int, columns: int, profile: NumericProfile,
) -> None:
    _check(f"{name}.weight", projection.weight, (rows, columns), -1, 1)
    bits = profile.bias_bits(name)
    _check(f"{name}.bias", projection.bias, (rows,), -(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    low, high = 1 << (profile.mantissa_bits - 1), (1 << profile.mantissa_bits) - 1
    if not low <= projection.k <= high:
        raise ValueError(f"{name}: k must be from {low} to {high}, got {projection.k}")
    if not 1 <= projection.shift <= profile.max_shift:
        raise ValueError(
            f"{name}: shift must be from 1 to {profile.max_shift}, got {projection.shift}")


# Packing ------------------------------------------------------------------------------


def pack_trits(weight: np.ndarray) -> np.ndarray:
    """Pack -1, 0, 1 into bytes: 2-bit two's complement, 4 a byte, first in the low bits.

    Row-major over the whole matrix; the last byte is filled up with zeros. Returns uint8.

    >>> pack_trits(np.array([[1, 0, -1, 1, -1]], dtype=np.int8)).tolist()
    [113, 3]
    """
    codes = np.asarray(weight, dtype=np.int8).reshape(-1).view(np.uint8) & 3
    codes = np.concatenate([codes, np.zeros(-codes.size % 4, dtype=np.uint8)]).reshape(-1, 4)
    return (codes << np.array([0, 2, 4, 6], dtype=np.uint8)).sum(axis=1).astype(np.uint8)


def unpack_trits(packed: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Undo :func:`pack_trits`; int8 of ``shape``.

    Raises ValueError if the size is wrong, a code is 2 (no trit) or the filling is not zero.
    """
    count = shape[0] * shape[1]
    if packed.dtype != np.uint8 or packed.shape != (-(-count // 4),):
        raise ValueError(
            f"{count} trits take {-(-count // 4)} uint8, got {packed.dtype} {packed.shape}")
    codes = (packed[:, None] >> np.array([0, 2, 4, 6], dtype=np.uint8)) & 3
    flat = codes.reshape(-1)
    bad = np.flatnonzero(flat == 2)
    if bad.size:
        raise ValueError(f"trit {bad[0]} has code 2; only 0, 1 and 3 are trits")
    if flat[count:].any():
        raise ValueError("the filling after the last trit is not zero")
    trits = flat.astype(np.int8)
    trits[trits == 3] = -1
    return trits[:count].reshape(shape)
