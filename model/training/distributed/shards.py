"""Tensors of many processes in one folder, each part written by who holds it.

It is the format of ``torch.distributed.checkpoint``. Its index is a pickle, which can run code
when it is read.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

__all__ = ["load_tensors", "save_tensors", "shapes_of_tensors"]


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
