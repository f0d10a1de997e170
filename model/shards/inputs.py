"""The files of a list of inputs, their kinds, and the documents in them.

A document is a text file, or a row of JSON lines, of a Parquet file (read with pyarrow) or of a
Hugging Face data set (read with datasets). Both packages are optional, and imported when used.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, BinaryIO

__all__ = [
    "DATASET", "FORMATS", "STDIN", "Document", "Input", "InputFile", "Meter",
    "are_one_document", "find_inputs", "read_documents",
]

FORMATS = ("auto", "text", "jsonl", "parquet")
"""Values of ``--format``."""

STDIN = "-"
"""The input that stands for standard input."""

DATASET = "hf:"
"""Prefix of an input that is a Hugging Face data set."""

_KINDS = {".txt": "text", ".text": "text", ".md": "text", ".rst": "text", ".jsonl": "jsonl",
          ".ndjson": "jsonl", ".parquet": "parquet"}


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file to read, of the kind ``text``, ``jsonl``, ``parquet`` or ``dataset`` (the path may
    then be a name); the size is 0 if unknown."""

    kind: str
    path: str
    size: int = 0

    @property
    def gzipped(self) -> bool:
        """Whether it must be unpacked."""
        return self.path.endswith(".gz")

    @property
    def label(self) -> str:
        """Its name in messages."""
        return "standard input" if self.path == STDIN else self.path


@dataclass(frozen=True, slots=True)
class Input:
    """One argument: its name without parent folders, and its files."""

    name: str
    files: tuple[InputFile, ...]


def find_inputs(inputs: Sequence[str], kind: str = "auto") -> list[Input]:
    """The files of every input, in order; those of a folder sorted by their path in it, without
    hidden ones. The kind is one of ``FORMATS``; ``auto`` goes by the suffix: with an unknown one, a
    file named as an input is text, and one in a folder is left out.
    """
    if not inputs:
        raise ValueError("there must be at least one input")
    if len(set(inputs)) < len(inputs):
        raise ValueError(f"an input is given twice: {max(inputs, key=list(inputs).count)}")
    return [_input(each, kind) for each in inputs]


def are_one_document(inputs: Sequence[Input]) -> bool:
    """Whether the inputs are a single text file, which is one document."""
    files = [file for each in inputs for file in each.files]
    return len(files) == 1 and files[0].kind == "text"


def _input(named: str, kind: str) -> Input:
    if named == STDIN:
        if kind == "parquet":
            raise ValueError("Parquet needs a file: standard input is text or JSONL")
        return Input("stdin", (InputFile("text" if kind == "auto" else kind, named),))
    if named.startswith(DATASET):
        return Input(named, (InputFile("dataset", named.removeprefix(DATASET)),))
    path = Path(named)
    if path.is_dir():
        return Input(path.resolve().name, tuple(_files_in(path, kind)))
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ValueError(f"{path}: cannot read the input ({error.strerror or error})") from error
    return Input(path.name, (InputFile(_kind(path, kind) or "text", named, size),))


def _files_in(folder: Path, kind: str) -> list[InputFile]:
    if kind == "auto" and _is_saved_dataset(folder):
        return [InputFile("dataset", str(folder))]
    paths: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [Path(place, name) for name in names if not name.startswith(".")]
    paths.sort(key=lambda path: path.relative_to(folder).parts)
    found = [InputFile(each, str(path), path.stat().st_size) for path in paths
             if (each := _kind(path, kind)) and path.is_file()]
    if not found:
        known = "" if kind != "auto" else (
            f" whose name ends in {', '.join(_KINDS)} or one of them and .gz; --format text reads "
            f"all as text")
        raise ValueError(f"{folder}: there is no file in the folder{known}")
    return found


def _kind(path: PurePath, kind: str) -> str | None:
    """The kind of a file; None if its name does not tell."""
    return _KINDS.get(PurePath(path.name.removesuffix(".gz")).suffix) if kind == "auto" else kind


_ROWS = 1024            # read at a time
_SPLIT = "train"        # default split of a data set


def _parquet_texts(
    file: BinaryIO, name: str, column: str,
) -> Iterator[tuple[str, str | None]]:
    """Name and text of every row of a Parquet file, with one row group in memory at a time."""
    import pyarrow as pa
    from pyarrow import parquet
    try:
        table = parquet.ParquetFile(file, pre_buffer=False)
        _check_column(name, column, table.schema_arrow.names)
        kind = table.schema_arrow.field(column).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise ValueError(f"{name}: column {column!r} must hold texts, it holds {kind}")
        row = 0
        for batch in table.iter_batches(_ROWS, columns=[column], use_threads=False):
            for text in batch.column(0).to_pylist():
                row += 1
                yield f"{name}, row {row}", text
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{name}: cannot read the Parquet file ({error})") from error


def _is_saved_dataset(folder: str | Path) -> bool:
    """Whether ``save_to_disk`` of the package `datasets` wrote this folder."""
    return any(Path(folder, name).is_file() for name in ("dataset_dict.json", "state.json"))


def _dataset_texts(named: str, column: str) -> Iterator[tuple[str, str | None]]:
    """Name and text of every row of a data set, streamed: of a folder that ``save_to_disk`` wrote,
    or of ``NAME[:CONFIG][:SPLIT]``, where ``NAME`` may be such a folder, too."""
    rows = _load(named)
    if rows.column_names is not None:
        _check_column(named, column, rows.column_names)
        rows = rows.select_columns([column])
    for number, row in enumerate(rows, 1):
        name = f"{named}, row {number}"
        if rows.column_names is None:
            _check_column(name, column, list(row))
        text = row[column]
        if text is not None and not isinstance(text, str):
            raise ValueError(f"{name}: column {column!r} must hold texts, got {text!r:.40}")
        yield name, text


def _load(named: str) -> Any:
    import datasets
    datasets.disable_progress_bars()
    name, *rest = [named] if _is_saved_dataset(named) else named.split(":")
    if len(rest) > 2 or not name:
        raise ValueError(f"a data set is hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT, got "
                         f"hf:{named}")
    split = rest[-1] if rest else _SPLIT
    if not _is_saved_dataset(name):
        return datasets.load_dataset(name, *rest[:-1], split=split, streaming=True)
    found = datasets.load_from_disk(name)
    if isinstance(found, datasets.DatasetDict):
        if split not in found:
            raise ValueError(
                f"{name}: there is no split {split!r}, but {', '.join(found)}; hf:{name}:SPLIT "
                f"names one")
        return found[split]
    if rest:
        raise ValueError(f"{name}: it was saved without splits, got the split {split!r}")
    return found


def _check_column(name: str, column: str, columns: list[str]) -> None:
    if column not in columns:
        raise ValueError(f"{name}: there is no column {column!r}, but {', '.join(columns)}; "
                         f"--column names another")


@dataclass(frozen=True, slots=True)
class Document:
    """A text to read, presumably UTF-8: its origin, and its bytes, at least 1."""

    name: str
    file: BinaryIO
    size: int


class Meter:
    """Counts the bytes read from files, before unpacking."""

    def __init__(self) -> None:
        self.read_bytes = 0

    def open(self, path: str) -> BinaryIO:
        """Open a file and count its bytes."""
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
    """The documents of an input: a text file, or every row of another kind with a ``column`` that
    is not null or empty. Read each document before requesting the next. ``spool`` is a folder for
    a temporary copy of a text of unknown length."""
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
        head = file.read(len(codecs.BOM_UTF8))
        if source.size and not source.gzipped and head != codecs.BOM_UTF8:
            file.seek(0)
            yield Document(source.label, file, source.size)
            return
        with tempfile.TemporaryFile(dir=spool) as copy:
            copy.write(head.removeprefix(codecs.BOM_UTF8))
            shutil.copyfileobj(file, copy, 1 << 20)
            size = copy.tell()
            if size:
                yield Document(source.label, copy, size)


def _rows(source: InputFile, column: str, meter: Meter) -> Iterator[Document]:
    for name, text in _texts(source, column, meter):
        if text:
            try:
                data = text.encode()
            except UnicodeEncodeError as error:     # JSON can encode a lone surrogate
                raise ValueError(
                    f"{name}: the text has half of a surrogate pair at character "
                    f"{error.start}") from error
            yield Document(name, io.BytesIO(data), len(data))


def _texts(source: InputFile, column: str, meter: Meter) -> Iterator[tuple[str, str | None]]:
    if source.kind == "dataset":
        yield from _dataset_texts(source.path, column)
        return
    with _opened(source, meter) as file:
        if source.kind == "parquet":
            yield from _parquet_texts(file, source.label, column)
        else:
            for number, line in enumerate(file, 1):
                if line.strip():
                    name = f"{source.label}, line {number}"
                    yield name, _field(name, line, column)


def _field(name: str, line: bytes, column: str) -> str | None:
    """The text of one line of JSON."""
    try:
        row = json.loads(line.decode("utf-8-sig"))
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
