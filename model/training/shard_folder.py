"""Where a run of several processes keeps its checkpoint: two places, and which of them counts.

Without torch.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from sterna.model.files import write_atomically

__all__ = ["POSITION_NAME", "ShardFolder"]

POSITION_NAME = "run.pt"
"""File beside the tensors: all of a checkpoint but them."""
_PLACES = ("a", "b")
_LATEST = "latest"


class ShardFolder:
    """A checkpoint in many files, of which there is always a whole one.

    A new one is written where the last is not. Then a small file is replaced, as a whole, that
    says which of the two counts.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def newest(self) -> Path | None:
        """The folder of the last whole checkpoint, or None if there was none yet.

        Raises
        ------
        ValueError
            If the file that names it says something else.
        OSError
            If it cannot be read.
        """
        latest = self.path / _LATEST
        try:
            name = latest.read_bytes().strip().decode(errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return None
        if name not in _PLACES:
            raise ValueError(f"{latest} is damaged: it must hold {' or '.join(_PLACES)}, got "
                             f"{name!r:.40}; to give the run up, remove {self.path}")
        return self.path / name

    def free_place(self) -> Path:
        """An empty folder for the next.

        Raises
        ------
        OSError
            If it cannot be made.
        """
        newest = self.newest()
        place = next(self.path / name for name in _PLACES if self.path / name != newest)
        if place.exists():      # of a process that was killed while it wrote
            shutil.rmtree(place)
        place.mkdir(parents=True)
        return place

    def publish(self, place: Path) -> None:
        """What was written to this place is whole, and counts from now on.

        Raises
        ------
        OSError
            If the folder cannot be written.
        """
        before = self.newest()
        write_atomically(self.path / _LATEST, f"{place.name}\n")
        if before is not None and before != place:
            shutil.rmtree(before)

    def drop(self) -> None:
        """Remove all of it, because a later checkpoint was written elsewhere.

        Raises
        ------
        OSError
            If the folder cannot be written.
        """
        if self.path.exists():
            (self.path / _LATEST).unlink(missing_ok=True)
            shutil.rmtree(self.path)
