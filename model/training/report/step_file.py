"""A text file that grows with the steps of a run, and is cut back when the run is resumed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

from sterna.model.files import write_atomically

__all__ = ["StepFile"]


class StepFile(ABC):
    """A file of entries, each of a step, in the order of the steps.

    A subclass says what an entry is.

    Parameters
    ----------
    path
        The file; replaced, unless a run is resumed.
    resume_step
        Entries up to this step are kept: a resumed run repeats those after its checkpoint.

    Raises
    ------
    ValueError
        If a run is resumed and its file cannot be read.
    OSError
        If the file cannot be written.
    """

    head = ""
    """What the file begins with."""

    def __init__(self, path: str | Path, resume_step: int = 0) -> None:
        path = Path(path)
        kept = [text for step, text in self.entries(path)
                if step <= resume_step] if resume_step and path.exists() else []
        write_atomically(path, self.head + "".join(kept))
        self._file = open(path, "a", newline="", encoding="utf-8")  # noqa: SIM115  (until close())

    @staticmethod
    @abstractmethod
    def entries(path: Path) -> Iterable[tuple[float, str]]:
        """Step and text of every entry of such a file; ValueError if it cannot be read."""

    def append(self, text: str) -> None:
        """Append the text of an entry; at once on disk."""
        self._file.write(text)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
