"""The folder that a simulation works in."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["work_folder"]


@contextmanager
def work_folder(work: Path | None) -> Iterator[Path]:
    """``work``, made if it is missing; if it is None, a folder that goes with the block."""
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
        yield work
        return
    with tempfile.TemporaryDirectory(prefix="sterna-") as name:
        yield Path(name)
