"""Documents divided between what is trained on and what is held out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from sterna.model.shards.documents import Document, Meter, read_documents
from sterna.model.shards.files import Part
from sterna.model.shards.inputs import Input, InputFile
from sterna.model.shards.pieces import Piece, cut_for, read_part
from sterna.model.shards.split import Split
from sterna.model.tokens.tokenizer import Tokenizer

__all__ = ["Side", "Sides"]


class Side:
    """What has come to one side so far: ``bytes`` of text and number of ``documents``."""

    def __init__(self) -> None:
        self.bytes = self.documents = 0
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Hash of the text that was counted with :meth:`add`."""
        return self._digest.hexdigest()

    def add(self, text: bytes) -> None:
        """Count some text."""
        self.bytes += len(text)
        self._digest.update(text)

    def part(self, sha256: str) -> Part:
        """The same for the index, with the hash of what is stored."""
        return Part(self.bytes, self.documents, sha256)


class Sides:
    """Gives the pieces to train on, and writes the held-out text on the way.

    Parameters
    ----------
    tokenizer
        Says where a long text may be cut in pieces.
    split
        What is held out.
    separator
        Text between two documents of a side; to train on, the tokenizer's token that ends a
        document takes its place, if it has one.
    file
        Takes the held-out text.
    block_bytes
        How much is read at a time.
    """

    def __init__(
        self, tokenizer: Tokenizer, split: Split, separator: str, file: BinaryIO,
        block_bytes: int,
    ) -> None:
        self._tokenizer, self._split, self._file = tokenizer, split, file
        self._separator, self._block_bytes = separator.encode(), block_bytes
        self.train, self.heldout = Side(), Side()
        self.sources: list[dict[str, Any]] = []
        """For the index: what each input amounted to, once it was read."""

    def divide(
        self, inputs: Iterable[Input], column: str, meter: Meter, spool: Path,
    ) -> Iterator[Piece]:
        """All pieces to train on, each to be encoded by itself."""
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
        """Hold out a text file; ``spool`` is as :func:`read_documents` has it.

        Raises
        ------
        ValueError
            If it cannot be read or is not UTF-8.
        """
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
            text = cut_for(self._tokenizer, self._read(document, 0, cut))
            for piece in self._with_separator(self.train, text):
                self.train.bytes += len(piece)
                yield document.name, piece
        if cut < document.size:
            self._write(self._read(document, cut, document.size))

    def _read(self, document: Document, start: int, end: int) -> Iterator[bytes]:
        return read_part(document, start, end, self._block_bytes)

    def _with_separator(self, side: Side, blocks: Iterable[bytes]) -> Iterator[bytes]:
        is_token = side is self.train and self._tokenizer.end_of_text is not None
        if side.documents and self._separator and not is_token:
            yield self._separator
        side.documents += 1
        yield from blocks

    def _write(self, blocks: Iterable[bytes]) -> None:
        for block in self._with_separator(self.heldout, blocks):
            self.heldout.add(block)
            self._file.write(block)
