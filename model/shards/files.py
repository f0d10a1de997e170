"""The files of a data folder: shards of tokens, the held-out text, and the index of both.

They are read, written and verified here. A shard is a header of 32 bytes and tokens without a gap.
The header is, little-endian: eight bytes ``sternatk``, uint32 version, uint32 bytes per token,
uint64 number of tokens, eight bytes of zero. Tokens are uint8, uint16 or uint32, little-endian: the
smallest that holds the vocabulary.
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

from sterna.model.checks import check_fields, check_whole, real_number
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
"""Of the index and of the shards."""

_FORMAT = "sterna token shards"
_MAGIC = b"sternatk"
_HEADER = struct.Struct("<8sIIQ8x")
_MOST = (1 << 63) - 1       # bytes of a file that there can be
_FIELDS = ("format", "version", "tokenizer", "vocab", "separator", "split", "train", "heldout",
           "shards", "sources", "sha256")


class ShardError(ValueError):
    """A data folder is incomplete, damaged or something else."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a part of the text amounts to: bytes, documents, and the SHA-256 of what is stored.

    That is the tokens for what is trained on, and the text for what is held out.
    """

    bytes: int
    documents: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard: name of its file, number of tokens, and the SHA-256 of them as stored."""

    file: str
    tokens: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Index:
    """What ``index.json`` holds.

    Parameters
    ----------
    tokenizer
        What the tokens were made with.
    separator
        The text between two documents.
    split
        How the held-out text was chosen: :meth:`Split.to_json`, or the name of a ``file``.
    train, heldout
        Size and hash of the two parts.
    shards
        The shards, in order.
    sources
        For each input its ``name``, and its ``files``, ``documents`` and ``bytes`` of text.
    """

    tokenizer: Tokenizer
    separator: str
    split: dict[str, Any]
    train: Part
    heldout: Part
    shards: tuple[Shard, ...]
    sources: tuple[dict[str, Any], ...]

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
        """Hash of tokenizer, tokens and held-out text; how tokens are cut into shards is not in
        it."""
        said = [self.tokenizer.to_json(), self.tokenizer.vocab, self.train.sha256,
                self.heldout.sha256]
        text = json.dumps(said, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The content of the file."""
        return {
            "format": _FORMAT, "version": VERSION, "tokenizer": self.tokenizer.to_json(),
            "vocab": self.tokenizer.vocab, "separator": self.separator, "split": self.split,
            "train": asdict(self.train), "heldout": asdict(self.heldout),
            "shards": [asdict(shard) for shard in self.shards], "sources": list(self.sources),
            "sha256": self.sha256}


def token_dtype(vocab: int) -> np.dtype:
    """The type of a stored token.

    >>> [token_dtype(vocab).name for vocab in (256, 257, 65536, 65537)]
    ['uint8', 'uint16', 'uint16', 'uint32']
    """
    return np.min_scalar_type(vocab - 1).newbyteorder("<")


def shard_name(number: int) -> str:
    """The file of a shard.

    >>> shard_name(7)
    'train-00007.bin'
    """
    return f"train-{number:05d}.bin"


def pack_header(dtype: np.dtype, tokens: int) -> bytes:
    """The 32 bytes before the tokens of a shard."""
    return _HEADER.pack(_MAGIC, VERSION, dtype.itemsize, tokens)


def read_index(folder: str | Path) -> Index:
    """Read the index of a data folder, and check that all its files are there and whole.

    Headers and sizes are checked, not hashes: that takes no longer for larger shards. Raises
    ShardError if a file is missing, damaged, of another version or something else; which one is
    said.
    """
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
    check_fields("the index", content, _FIELDS)
    check_whole("vocab", content["vocab"], 2)
    shards = tuple(Shard(**_whole(entry, tokens=1)) for entry in content["shards"])
    for number, shard in enumerate(shards):
        if shard.file != shard_name(number):    # nor is any other folder's file read
            raise ValueError(f"shard {number} must be {shard_name(number)}, got {shard.file!r}")
    if not shards:
        raise ValueError("there is no shard")
    train, heldout = (
        Part(**_whole(content[part], bytes=0, documents=0)) for part in ("train", "heldout"))
    tokenizer = tokenizer_from_json(content["tokenizer"], content["vocab"])
    if tokenizer.vocab != content["vocab"]:
        raise ValueError(f"vocab must be that of its tokenizer, {tokenizer.vocab:,}, got "
                         f"{content['vocab']:,}")
    _check_words(content)
    index = Index(tokenizer, content["separator"], content["split"], train, heldout, shards,
                  tuple(content["sources"]))
    if index.sha256 != content["sha256"]:
        raise ValueError("its parts do not have the hash that it says: the file was changed")
    return index


def _check_words(content: dict[str, Any]) -> None:
    """Check what is shown to people, and not in the hash."""
    if not isinstance(content["separator"], str):
        raise ValueError(f"separator must be text, got {content['separator']!r:.80}")
    split = content["split"]
    if not isinstance(split, dict) or not (
            isinstance(split.get("file"), str) or {"fraction", "seed"} <= split.keys()):
        raise ValueError(f"split must have a file, or a fraction and a seed, got {split!r:.80}")
    if "file" not in split:
        real_number("fraction", split["fraction"])
    if not isinstance(content["sources"], list):
        raise ValueError(f"sources must be a list, got {content['sources']!r:.80}")
    for source in content["sources"]:
        _whole(source, files=0, documents=0, bytes=0)
        if not isinstance(source.get("name"), str):
            raise ValueError(f"a source must have a name, got {source!r:.80}")


def _whole(entry: Any, **lows: int) -> dict[str, Any]:
    """An object whose fields of these names are numbers from these on."""
    if not isinstance(entry, dict):
        raise ValueError(f"expected an object with {', '.join(lows)}, got {entry!r:.80}")
    for field, low in lows.items():
        check_whole(field, entry.get(field), low, _MOST)
    return entry


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
        names = ("version", "bytes per token", "tokens")
        found = _HEADER.unpack(header)[1:] if len(header) == _HEADER.size else ("a short header",)
        wanted = _HEADER.unpack(expected)[1:]
        raise ShardError(
            f"{path}: the header should say "
            f"{', '.join(f'{name} {value}' for name, value in zip(names, wanted, strict=True))}; "
            f"got {', '.join(map(str, found))}")
    _check_size(path, _HEADER.size + shard.tokens * dtype.itemsize)


def _check_size(path: Path, size: int) -> None:
    try:
        found = path.stat().st_size
    except OSError as error:
        raise ShardError(f"{path}: cannot read it ({error.strerror or error})") from error
    if found != size:
        raise ShardError(f"{path}: must have {size:,} bytes, got {found:,}")


class ShardWriter:
    """Fills one shard after the other with ``shard_tokens``; how tokens arrive makes no difference
    to the files. It is to be used in a ``with`` block, which ends the last shard."""

    def __init__(self, folder: Path, dtype: np.dtype, shard_tokens: int) -> None:
        self._folder, self._dtype, self._shard_tokens = folder, dtype, shard_tokens
        self._file: BinaryIO | None = None
        self._written = 0       # tokens of the open shard
        self._shard, self._all = hashlib.sha256(), hashlib.sha256()
        self.shards: list[Shard] = []
        """Those that are full, and after the block all."""

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
        """Say in the header of the open shard, if there is one, how many tokens it has."""
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
    """Compare all tokens and the held-out text with the hashes of the index, and its counts with
    them and with each other.

    Raises ShardError if a file is missing or has another size; then nothing was read.

    Parameters
    ----------
    folder
        The data folder.
    progress
        Called with the bytes read and their total.

    Returns
    -------
    list
        A line for each thing that is wrong; empty if nothing is.
    """
    folder, index = Path(folder), read_index(folder)
    total = index.tokens * index.dtype.itemsize + index.heldout.bytes
    header_bytes = len(pack_header(index.dtype, 0))
    lengths = np.array([len(spelling) for spelling in index.tokenizer.spellings])
    done, spelled, wrong = 0, 0, []
    everything = hashlib.sha256()
    for shard in index.shards:
        digest, largest = hashlib.sha256(), 0
        with (folder / shard.file).open("rb") as file:
            file.seek(header_bytes)
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
                everything.update(block)
                tokens = np.frombuffer(block, index.dtype)
                largest = max(largest, int(tokens.max()))
                spelled += int(lengths[tokens[tokens < lengths.size]].sum())
                progress(done := done + len(block), total)
        if digest.hexdigest() != shard.sha256:
            wrong.append(f"{folder / shard.file}: the tokens are not those that were built")
        elif largest >= index.tokenizer.vocab:
            wrong.append(f"{folder / shard.file}: has the token {largest}, the vocabulary ends "
                         f"at {index.tokenizer.vocab - 1}")
    if not wrong and everything.hexdigest() != index.train.sha256:
        wrong.append(f"{folder}: the shards are not those of this index, or not in its order")
    wrong += _wrong_heldout(folder, index)
    return wrong or [f"{folder / INDEX}: {line}" for line in _wrong_counts(index, spelled)]


def _wrong_heldout(folder: Path, index: Index) -> list[str]:
    with (folder / HELDOUT).open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return [] if found == index.heldout.sha256 else [
        f"{folder / HELDOUT}: the text is not the one that was built"]


def _wrong_counts(index: Index, spelled: int) -> list[str]:
    """What the index says of sizes and documents, and its parts do not; the tokens spell so many
    bytes."""
    wrong = []
    train, heldout = index.train, index.heldout
    if train.bytes != spelled:
        wrong.append(f"train has {train.bytes:,} bytes, and the tokens spell {spelled:,}")
    divided = [train] if "file" in index.split else [train, heldout]
    separator = len(index.separator.encode())
    size = sum(each.bytes for each in divided) - sum(
        separator * max(0, each.documents - 1) for each in divided
        if each is heldout or index.tokenizer.end_of_text is None)
    read = sum(source["bytes"] for source in index.sources)
    if size != read:
        wrong.append(f"the sources have {read:,} bytes of text, and what was made of them {size:,}")
    documents = sum(each.documents for each in divided)
    there = sum(source["documents"] for source in index.sources)
    if not there <= documents <= len(divided) * there:  # the end of one may be held out
        wrong.append(f"the sources have {there:,} documents, and what was made of them "
                     f"{documents:,}")
    return wrong
