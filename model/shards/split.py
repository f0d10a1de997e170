"""Split documents into pieces to encode and train on, and held-out text.

The held-out part of a document depends only on its content, not on earlier documents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from sterna.model.checks import check_whole, real_number
from sterna.model.files import utf8_blocks
from sterna.model.shards.files import Part
from sterna.model.shards.inputs import Document, Input, InputFile, Meter, read_documents
from sterna.model.tokens.tokenizer import Tokenizer

__all__ = ["Piece", "Sides", "Split", "batches"]

_LONG_BYTES = 1 << 16
"""From this size on, a document is cut instead of being held out or trained on as a whole."""

_LINE_BYTES = 1 << 16       # search range for the end of a line


@dataclass(frozen=True, slots=True)
class Split:
    """A rule that holds out about a ``fraction`` of the text.

    Of a long document the end is held out. A shorter one is held out depending on the hash of its
    text, so identical documents are always on one side.
    """

    fraction: float = 0.01          # from 0, which holds nothing out, to 0.5
    seed: int = 0                   # another one chooses other documents
    long_bytes: int = _LONG_BYTES   # size from which a document is long; 1 cuts all

    def __post_init__(self) -> None:
        if not 0.0 <= real_number("heldout", self.fraction) <= 0.5:
            raise ValueError(f"heldout must be from 0 to 0.5, got {self.fraction}")
        check_whole("seed", self.seed, 0, (1 << 64) - 1)
        check_whole("long_bytes", self.long_bytes, 1)

    def to_json(self) -> dict[str, Any]:
        """Its form in the index."""
        return {"fraction": self.fraction, "seed": self.seed, "long_bytes": self.long_bytes}

    def cut(self, document: Document) -> int:
        """Number of bytes to train on: all, none, or those before the end."""
        if not self.fraction:
            return document.size
        if document.size >= self.long_bytes:
            return self._end(document)
        document.file.seek(0)
        digest = hashlib.blake2b(
            document.file.read(document.size), digest_size=8, salt=self.seed.to_bytes(16, "little"))
        chosen = int.from_bytes(digest.digest(), "little") < self.fraction * 2.0 ** 64
        return 0 if chosen else document.size

    def _end(self, document: Document) -> int:
        """Start of the end: after a line, if one ends soon, else between characters."""
        cut = max(1, round(document.size * (1.0 - self.fraction)))
        document.file.seek(cut - 1)
        text = document.file.read(max(5, min((document.size - cut) // 2, _LINE_BYTES)))
        line_end = text.find(b"\n")
        if line_end >= 0:
            return cut + line_end
        begun = 1       # byte at the cut; the next ones may continue a character
        while begun < len(text) and text[begun] & 0xC0 == 0x80:
            begun += 1
        return cut - 1 + begun


Piece: TypeAlias = tuple[str, bytes | None]
"""The name of a document, for messages, and some of its text; None is the token that ends the
previous document."""


def _read_part(document: Document, start: int, end: int, block_bytes: int) -> Iterator[bytes]:
    """The bytes of a document from ``start`` to ``end``, in blocks."""
    document.file.seek(start)
    while start < end:
        block = document.file.read(min(block_bytes, end - start))
        if not block:
            raise ValueError(f"{document.name}: became shorter while it was read")
        start += len(block)
        yield block


def _cut_for(tokenizer: Tokenizer, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The text of blocks, cut again where the tokens do not depend on the cut; blocks are joined
    until there is such a position."""
    rest = b""
    for block in blocks:
        text = rest + block
        cut = tokenizer.last_cut(text)
        if cut:
            yield text[:cut]
        rest = text[cut:]
    if rest:
        yield rest


def batches(pieces: Iterable[Piece], batch_bytes: int) -> Iterator[list[Piece]]:
    """Pieces in lists of at least ``batch_bytes``, except the last."""
    batch, size = [], 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece[1] or b"")
        if size >= batch_bytes:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@dataclass(slots=True)
class _Side:
    """Totals of one side so far."""

    bytes: int = 0      # of text
    documents: int = 0

    def part(self, sha256: str) -> Part:
        """The same for the index, with the hash of the stored data."""
        return Part(self.bytes, self.documents, sha256)


class Sides:
    """Gives the pieces to train on, and writes the held-out text to a file meanwhile.

    Two documents of a side are separated by the separator or, on the train side, by the tokenizer's
    end-of-document token, if it has one. About ``block_bytes`` are read at a time.
    """

    def __init__(
        self, tokenizer: Tokenizer, split: Split, separator: str, file: BinaryIO,
        block_bytes: int,
    ) -> None:
        self._tokenizer, self._split, self._file = tokenizer, split, file
        self._separator, self._block_bytes = separator.encode(), block_bytes
        self.train, self.heldout, self.heldout_digest = _Side(), _Side(), hashlib.sha256()
        self.sources: list[dict[str, Any]] = []
        """Totals of each input already read, for the index."""

    def divide(
        self, inputs: Iterable[Input], column: str, meter: Meter, spool: Path,
    ) -> Iterator[Piece]:
        """All pieces to train on, each to encode by itself."""
        for each in inputs:
            documents = size = 0
            for file in each.files:
                for document in read_documents(file, column, meter, spool):
                    documents += 1
                    size += document.size
                    yield from self._pieces(document)
            self.sources.append({"name": each.name, "files": len(each.files),
                                 "documents": documents, "bytes": size})

    def hold_out(self, path: Path, spool: Path) -> None:
        """Hold out a text file; ``spool`` is as in :func:`read_documents`."""
        try:
            source = InputFile("text", str(path), path.stat().st_size)
            for document in read_documents(source, "", Meter(), spool):
                self._write(self._read(document, 0, document.size))
        except OSError as error:
            raise ValueError(
                f"{path}: cannot read the text to hold out ({error.strerror or error})") from error

    def _pieces(self, document: Document) -> Iterator[Piece]:
        cut = self._split.cut(document)
        if cut:
            if self._tokenizer.end_of_text is not None and self.train.documents:
                yield document.name, None
            text = _cut_for(self._tokenizer, self._read(document, 0, cut))
            for piece in self._with_separator(self.train, text):
                self.train.bytes += len(piece)
                yield document.name, piece
        if cut < document.size:
            self._write(self._read(document, cut, document.size))

    def _read(self, document: Document, start: int, end: int) -> Iterator[bytes]:
        blocks = _read_part(document, start, end, self._block_bytes)
        return utf8_blocks(document.name, blocks, start)

    def _with_separator(self, side: _Side, blocks: Iterable[bytes]) -> Iterator[bytes]:
        is_token = side is self.train and self._tokenizer.end_of_text is not None
        if side.documents and self._separator and not is_token:
            yield self._separator
        side.documents += 1
        yield from blocks

    def _write(self, blocks: Iterable[bytes]) -> None:
        for block in self._with_separator(self.heldout, blocks):
            self.heldout.bytes += len(block)
            self.heldout_digest.update(block)
            self._file.write(block)
