"""The files of a data folder: shards of tokens, the held-out text, and the index of both.

They are read, written and verified here. A shard is a header of 32 bytes followed directly by
tokens. The header is, little-endian: eight bytes ``sternatk``, uint32 version, uint32 bytes per
token, uint64 number of tokens, eight bytes of zero. Tokens are uint8, uint16 or uint32,
little-endian: the smallest that holds the vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sterna.model.tokens.files import tokenizer_from_json
from sterna.model.tokens.tokenizer import Tokenizer

__all__ = [
    "HELDOUT", "INDEX", "VERSION", "Index", "Part", "Shard", "ShardError", "ShardWriter",
    "pack_header", "read_index", "shard_name", "token_dtype", "verify",
]

INDEX = "index.json"
"""Name of the index."""

HELDOUT = "heldout.txt"
"""Name of the held-out text."""

VERSION = 1
"""Version of the index and the shards."""

_FORMAT = "sterna token shards"
_MAGIC = b"sternatk"
_HEADER = struct.Struct("<8sIIQ8x")
_CHECKSUM = "checksum"     # of the rest of the index


class ShardError(ValueError):
    """A data folder is incomplete, damaged or something else."""


@dataclass(frozen=True, slots=True)
class Part:
    """Totals of a part of the text: bytes, documents, and the SHA-256 of its stored form.

    The train part is stored as tokens, the held-out part as text.
    """

    bytes: int
    documents: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard: its file name, number of tokens, and the SHA-256 of the stored tokens."""

    file: str
    tokens: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Index:
    """The content of ``index.json``."""

    tokenizer: Tokenizer
    separator: str                      # the text between two documents
    split: dict[str, Any]               # Split.to_json(), or the name of a ``file`` held out
    train: Part
    heldout: Part
    shards: tuple[Shard, ...]           # in order
    sources: tuple[dict[str, Any], ...]     # per input: name, files, documents, bytes of text

    @property
    def tokens(self) -> int:
        """Number of tokens to train on."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def dtype(self) -> np.dtype:
        """Type of a token in the shards."""
        return token_dtype(self.tokenizer.vocab)

    @property
    def sha256(self) -> str:
        """Hash of tokenizer, tokens and held-out text; independent of the division into shards."""
        return _hash_of([self.tokenizer.to_json(), self.tokenizer.vocab, self.train.sha256,
                         self.heldout.sha256])

    def to_json(self) -> dict[str, Any]:
        """The content of the file."""
        content = {
            "format": _FORMAT, "version": VERSION, "tokenizer": self.tokenizer.to_json(),
            "vocab": self.tokenizer.vocab, "separator": self.separator, "split": self.split,
            "train": asdict(self.train), "heldout": asdict(self.heldout),
            "shards": [asdict(shard) for shard in self.shards], "sources": list(self.sources),
            "sha256": self.sha256}
        return {**content, _CHECKSUM: _hash_of(content)}


def _hash_of(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def token_dtype(vocab: int) -> np.dtype:
    """The type of a stored token.

    >>> [token_dtype(vocab).name for vocab in (256, 257, 65536, 65537)]
    ['uint8', 'uint16', 'uint16', 'uint32']
    """
    return np.min_scalar_type(vocab - 1).newbyteorder("<")


def shard_name(number: int) -> str:
    """The file name of a shard.

    >>> shard_name(7)
    'train-00007.bin'
    """
    return f"train-{number:05d}.bin"


def pack_header(dtype: np.dtype, tokens: int) -> bytes:
    """The 32 bytes before the tokens of a shard."""
    return _HEADER.pack(_MAGIC, VERSION, dtype.itemsize, tokens)


def read_index(folder: str | Path) -> Index:
    """Read the index of a data folder. Raises ShardError if one of its files is missing, damaged,
    of another version or something else. Checks headers and sizes, not hashes, so the time does
    not depend on the size of shards."""
    folder = Path(folder)
    path = folder / INDEX
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ShardError(
            f"{folder}: no data folder, cannot read {INDEX} ({error.strerror or error}); give a "
            f"folder that sterna data build wrote") from error
    except (ValueError, RecursionError) as error:
        raise ShardError(f"{path}: not the index of a data folder (no JSON)") from error
    try:
        index = _parse(content)
    except (KeyError, TypeError, ValueError) as error:
        raise ShardError(f"{path}: {error}") from error
    for shard in index.shards:
        _check_shard(folder / shard.file, shard, index.dtype)
    _check_size(folder / HELDOUT, index.heldout.bytes)
    return index


def _parse(content: Any) -> Index:
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError("not the index of a data folder")
    if content.get("version") != VERSION:
        raise ValueError(f"the data folder has version {content.get('version')!r}, this Sterna "
                         f"reads version {VERSION}: build it again")
    if _hash_of({name: each for name, each in content.items() if name != _CHECKSUM}) != (
            content.get(_CHECKSUM)):
        raise ValueError(f"its parts do not have the {_CHECKSUM} that it says: the file was "
                         f"changed, or written by an older Sterna; build the folder again")
    return Index(
        tokenizer_from_json(content["tokenizer"], content["vocab"]), content["separator"],
        content["split"], Part(**content["train"]), Part(**content["heldout"]),
        tuple(Shard(**entry) for entry in content["shards"]), tuple(content["sources"]))


def _check_shard(path: Path, shard: Shard, dtype: np.dtype) -> None:
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
    except OSError as error:
        raise ShardError(f"{path}: cannot read the shard ({error.strerror or error})") from error
    if not header.startswith(_MAGIC):
        raise ShardError(f"{path}: not a shard of tokens")
    expected = pack_header(dtype, shard.tokens)
    if header != expected:
        found = _HEADER.unpack(header)[1:] if len(header) == _HEADER.size else ("a short header",)
        raise ShardError(
            f"{path}: the header should say version {VERSION}, bytes per token {dtype.itemsize}, "
            f"tokens {shard.tokens}; got {', '.join(map(str, found))}")
    _check_size(path, _HEADER.size + shard.tokens * dtype.itemsize)


def _check_size(path: Path, size: int) -> None:
    try:
        found = path.stat().st_size
    except OSError as error:
        raise ShardError(f"{path}: cannot read it ({error.strerror or error})") from error
    if found != size:
        raise ShardError(f"{path}: must have {size:,} bytes, got {found:,}")


class ShardWriter:
    """Fills one shard after the other with ``shard_tokens``; the files do not depend on how tokens
    arrive. Use it in a ``with`` block, which ends the last shard."""

    def __init__(self, folder: Path, dtype: np.dtype, shard_tokens: int) -> None:
        self._folder, self._dtype, self._shard_tokens = folder, dtype, shard_tokens
        self._file: BinaryIO | None = None
        self._written = 0       # tokens of the open shard
        self._shard, self._all = hashlib.sha256(), hashlib.sha256()
        self.shards: list[Shard] = []
        """The full shards; after the block all."""

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self._end_shard()
        elif self._file is not None:
            self._file.close()

    @property
    def sha256(self) -> str:
        """Hash of all tokens so far."""
        return self._all.hexdigest()

    def write(self, tokens: np.ndarray) -> None:
        """Add tokens ``[tokens]`` of the writer's type."""
        assert tokens.dtype == self._dtype
        while tokens.size:
            if self._file is None:
                self._file = (self._folder / shard_name(len(self.shards))).open("wb")
                self._file.write(pack_header(self._dtype, 0))
            some = tokens[:self._shard_tokens - self._written]
            data = np.ascontiguousarray(some).data
            self._file.write(data)
            self._shard.update(data)
            self._all.update(data)
            self._written += some.size
            tokens = tokens[some.size:]
            if self._written == self._shard_tokens:
                self._end_shard()

    def _end_shard(self) -> None:
        """Write the number of tokens to the header of the open shard, if any, and close it."""
        if self._file is None:
            return
        with self._file as file:
            file.seek(0)
            file.write(pack_header(self._dtype, self._written))
            file.flush()
            os.fsync(file.fileno())
        self.shards.append(
            Shard(shard_name(len(self.shards)), self._written, self._shard.hexdigest()))
        self._file, self._written, self._shard = None, 0, hashlib.sha256()


_BLOCK_BYTES = 1 << 22


def verify(
    folder: str | Path, progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[str]:
    """Compare all tokens and the held-out text with the hashes of the index; return one line per
    error. ``progress`` is called with the bytes read and their total.

    Raises ShardError, before reading, if a file is missing or has another size.
    """
    folder, index = Path(folder), read_index(folder)
    total = index.tokens * index.dtype.itemsize + index.heldout.bytes
    done, wrong = 0, []
    for path, begin, expected, fault in (
            *((folder / shard.file, _HEADER.size, shard.sha256,
               "the tokens are not those that were built") for shard in index.shards),
            (folder / HELDOUT, 0, index.heldout.sha256, "the text is not the one that was built")):
        digest = hashlib.sha256()
        with path.open("rb") as file:
            file.seek(begin)
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
                progress(done := done + len(block), total)
        if digest.hexdigest() != expected:
            wrong.append(f"{path}: {fault}")
    return wrong
