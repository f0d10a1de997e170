"""Documents, one after the other, from text files, JSON lines and tables."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sterna.model.shards.inputs import STDIN, InputFile
from sterna.model.shards.tables import dataset_texts, parquet_texts

__all__ = ["Document", "Meter", "read_documents"]


@dataclass(frozen=True, slots=True)
class Document:
    """A text to be read: UTF-8, or what claims to be.

    Parameters
    ----------
    name
        Where it is from, for messages.
    file
        Gives its bytes, from any place on.
    size
        Number of its bytes, at least 1.
    """

    name: str
    file: BinaryIO
    size: int


class Meter:
    """Counts the bytes that are read of files, packed as they are."""

    def __init__(self) -> None:
        self.read_bytes = 0

    def open(self, path: str) -> BinaryIO:
        """Open a file whose bytes count."""
        return io.BufferedReader(_Counted(path, self), 1 << 20)


class _Counted(io.FileIO):
    def __init__(self, path: str, meter: Meter) -> None:
        super().__init__(path)
        self._meter = meter

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer) or 0
        self._meter.read_bytes += count
        return count


def read_documents(
    source: InputFile, column: str, meter: Meter, spool: Path,
) -> Iterator[Document]:
    """The documents of an input; a text file is one, every row of another kind is.

    Empty texts, and rows where the text is null, are no documents. A document is to be read
    before the next is asked for.

    Parameters
    ----------
    source
        What to read.
    column
        The field of JSON lines, and the column of tables, that holds the text.
    meter
        Told of what is read.
    spool
        Folder for a temporary copy of a text whose length is not known before it is read: of
        standard input, of a pipe, or packed.

    Raises
    ------
    ValueError
        If something cannot be read as what it should be; the file and the line or row are named.
    """
    try:
        if source.kind == "text":
            yield from _text(source, meter, spool)
        else:
            yield from _rows(source, column, meter)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{source.label}: not a whole gzip file ({error})") from error
    except OSError as error:
        raise ValueError(
            f"{source.label}: cannot read the input ({error.strerror or error})") from error


def _text(source: InputFile, meter: Meter, spool: Path) -> Iterator[Document]:
    with _opened(source, meter) as file:
        if source.size and not source.gzipped:
            yield Document(source.label, file, source.size)
            return
        with tempfile.TemporaryFile(dir=spool) as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
            size = copy.tell()
            if size:
                yield Document(source.label, copy, size)


def _rows(source: InputFile, column: str, meter: Meter) -> Iterator[Document]:
    for name, text in _texts(source, column, meter):
        if text:
            try:
                data = text.encode()
            except UnicodeEncodeError as error:     # JSON can name half a character
                raise ValueError(
                    f"{name}: the text has half of a surrogate pair at character "
                    f"{error.start}") from error
            yield Document(name, io.BytesIO(data), len(data))


def _texts(source: InputFile, column: str, meter: Meter) -> Iterator[tuple[str, str | None]]:
    if source.kind == "dataset":
        yield from dataset_texts(source.path, column)
        return
    with _opened(source, meter) as file:
        if source.kind == "parquet":
            yield from parquet_texts(file, source.label, column)
        else:
            for number, line in enumerate(file, 1):
                if line.strip():
                    name = f"{source.label}, line {number}"
                    yield name, _field(name, line, column)


def _field(name: str, line: bytes, column: str) -> str | None:
    """The text of one line of JSON."""
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 text (byte 0x{line[error.start]:02x})") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: not JSON ({error})") from error
    if not isinstance(row, dict):
        raise ValueError(f"{name}: expected an object, got {type(row).__name__}")
    if column not in row:
        raise ValueError(f"{name}: there is no field {column!r}, but {', '.join(row) or 'none'}; "
                         f"--column names another")
    text = row[column]
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{name}: field {column!r} must be a text, got {text!r:.40}")
    return text


@contextmanager
def _opened(source: InputFile, meter: Meter) -> Iterator[BinaryIO]:
    """The bytes of an input, unpacked."""
    if source.path == STDIN:
        if sys.stdin is None:
            raise ValueError("standard input is closed")
        yield sys.stdin.buffer
        return
    with meter.open(source.path) as file:
        if not source.gzipped or source.kind == "parquet":
            yield file
            return
        with gzip.GzipFile(fileobj=file) as packed, io.BufferedReader(
                packed, 1 << 20) as text:
            yield text
