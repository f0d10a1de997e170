"""Which files a list of inputs stands for, and of what kind each is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from sterna.model.shards.tables import is_saved_dataset

__all__ = ["DATASET", "FORMATS", "STDIN", "Input", "InputFile", "are_one_document", "find_inputs"]

FORMATS = ("auto", "text", "jsonl", "parquet")
"""What ``--format`` may be."""

STDIN = "-"
"""The input that is standard input."""

DATASET = "hf:"
"""How an input begins that is a data set of Hugging Face."""

_KINDS = {".txt": "text", ".text": "text", ".md": "text", ".rst": "text", ".jsonl": "jsonl",
          ".ndjson": "jsonl", ".parquet": "parquet"}


@dataclass(frozen=True, slots=True)
class InputFile:
    """One thing to read.

    Parameters
    ----------
    kind
        ``text``, ``jsonl``, ``parquet`` or ``dataset``.
    path
        Where it is; for a data set its name, if that is no folder.
    size
        Bytes of the file; 0 if nobody knows.
    """

    kind: str
    path: str
    size: int = 0

    @property
    def gzipped(self) -> bool:
        """Whether it is to be unpacked."""
        return self.path.endswith(".gz")

    @property
    def label(self) -> str:
        """For messages."""
        return "standard input" if self.path == STDIN else self.path


@dataclass(frozen=True, slots=True)
class Input:
    """What one argument stands for: a name without the folders above it, and files."""

    name: str
    files: tuple[InputFile, ...]


def find_inputs(inputs: Sequence[str], kind: str = "auto") -> list[Input]:
    """The files of every input, in order; those of a folder sorted by their path in it.

    Parameters
    ----------
    inputs
        Files, folders, ``-`` or ``hf:NAME[:CONFIG][:SPLIT]``.
    kind
        One of ``FORMATS``. ``auto`` goes by the end of a file's name; a file that was named
        and ends in nothing known is text, one that was only found in a folder is left out. Files
        and folders in a folder whose names begin with a dot are left out.

    Raises
    ------
    ValueError
        If an input is missing, or a folder holds nothing to read.
    """
    if not inputs:
        raise ValueError("there must be at least one input")
    if len(set(inputs)) < len(inputs):
        raise ValueError(f"an input is there twice: {max(inputs, key=list(inputs).count)}")
    return [_input(each, kind) for each in inputs]


def are_one_document(inputs: Sequence[Input]) -> bool:
    """Whether all that is read is one text file, which is one document."""
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
    if kind == "auto" and is_saved_dataset(folder):
        return [InputFile("dataset", str(folder))]
    found = list(_below(folder, kind))
    if not found:
        known = "" if kind != "auto" else (
            f" whose name ends in {', '.join(_KINDS)} or one of them and .gz; --format text reads "
            f"all as text")
        raise ValueError(f"{folder}: there is no file in the folder{known}")
    return found


def _below(folder: Path, kind: str) -> Iterator[InputFile]:
    paths = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [Path(place, name) for name in names if not name.startswith(".")]
    for path in sorted(paths, key=lambda path: path.relative_to(folder).parts):
        found = _kind(path, kind)
        if found and path.is_file():
            yield InputFile(found, str(path), path.stat().st_size)


def _kind(path: PurePath, kind: str) -> str | None:
    """Of what kind a file is; None if its name does not say."""
    return _KINDS.get(PurePath(path.name.removesuffix(".gz")).suffix) if kind == "auto" else kind
