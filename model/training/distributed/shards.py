"""Tensors of many processes in one folder, each part written by who holds it.

It is the format of ``torch.distributed.checkpoint``. Its index is a pickle, which can run code
when it is read. It knows no sums of its files: those of two processes that changed places would be
read as if nothing were wrong. So a list of them stands beside.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from sterna.model.files import write_atomically
from sterna.model.training.distributed.processes import Processes

__all__ = ["check_files", "list_files", "load_tensors", "save_tensors", "shapes_of_tensors"]

_SUMS = "sha256.json"
"""File beside the others: their names, with the SHA-256 of each."""


def save_tensors(tensors: dict[str, Any], folder: Path) -> None:
    """Write a dictionary of tensors and dictionaries; called by every process.

    What all have alike is written once.

    Raises
    ------
    OSError
        On every process, if one of them cannot write.
    """
    try:
        with _alone() as alone:
            dcp.save(tensors, checkpoint_id=folder, no_dist=alone)
    except CheckpointException as error:
        raise OSError(f"cannot write {folder} ({_reason(error)})") from error


def load_tensors(tensors: dict[str, Any], folder: Path) -> None:
    """Fill a dictionary like the saved one, in place, in whatever layout its tensors have.

    Raises
    ------
    ValueError
        On every process, if the folder does not have these tensors.
    """
    try:
        with _alone() as alone:
            dcp.load(tensors, checkpoint_id=folder, no_dist=alone)
    except CheckpointException as error:
        raise ValueError(f"{folder} is damaged, or of another model ({_reason(error)})") from error


def shapes_of_tensors(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors in a folder, by the names of all dictionaries around them.

    Raises
    ------
    ValueError
        If the index cannot be read.
    """
    try:
        found = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
        return {name: tuple(each.size) for name, each in found.items() if hasattr(each, "size")}
    except Exception as error:      # a changed bit of a pickle can raise anything
        raise ValueError(
            f"{folder} is damaged: its index cannot be read ({type(error).__name__})") from error


def list_files(folder: Path, processes: Processes) -> None:
    """Write down what the files of a folder hold, now that all are written; called by every
    process, as each reads its share of them.

    Raises
    ------
    OSError
        On every process, if a file cannot be read, or the list not be written.
    """
    names = processes.first_says(processes.on_first(
        lambda: sorted(path.name for path in folder.iterdir() if path.name != _SUMS)))
    assert names is not None
    sums = _sums(folder, names, processes)
    if None in sums.values():
        raise OSError(f"cannot read what was written to {folder}")
    processes.on_first(lambda: write_atomically(folder / _SUMS, json.dumps(sums, indent=1)))


def check_files(folder: Path, processes: Processes) -> None:
    """Refuse a folder that does not hold what :func:`list_files` found in it; called by every
    process.

    Raises
    ------
    ValueError
        On every process, naming the file.
    """
    known = processes.first_says(processes.on_first(lambda: _listed(folder)))
    assert known is not None
    for name, found in _sums(folder, sorted(known), processes).items():
        if found != known[name]:
            raise ValueError(f"{name} is {'missing' if found is None else 'damaged'}")


def _listed(folder: Path) -> dict[str, Any]:
    try:
        known = json.loads((folder / _SUMS).read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{_SUMS} is damaged or missing ({type(error).__name__})") from error
    if not isinstance(known, dict):
        raise ValueError(f"{_SUMS} is damaged")
    return known


def _sums(folder: Path, names: list[str], processes: Processes) -> dict[str, str | None]:
    """The sum of every file, None of one that cannot be read; each process makes its share."""
    parts = processes.every(
        {name: _sum(folder / name) for name in names[processes.rank::processes.size]})
    return {name: found for part in parts for name, found in part.items()}


def _sum(path: Path) -> str | None:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


@contextmanager
def _alone() -> Iterator[bool]:
    """Whether there is no process group, of which torch would warn."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield not dist.is_initialized()


def _reason(error: CheckpointException) -> str:
    """The first of the errors that the processes had."""
    first = next(iter(error.failures.values()))[0]
    return f"{type(first).__name__}: {' '.join(str(first).split()):.300}"
