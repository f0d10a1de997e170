"""The folder of a run: its files, which of them may be replaced, and a lock. Without torch.

A run of several processes alternates its checkpoint between two places; a file names the valid one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sterna.model.files import write_atomically

try:
    import fcntl
except ImportError:     # not on Windows
    fcntl = None        # type: ignore[assignment]  # a module, or none

__all__ = ["CHECKPOINT_NAME", "POSITION_NAME", "RunFolder"]

POSITION_NAME = "run.pt"
"""File beside the tensors with the rest of a checkpoint."""
_PLACES = ("a", "b")
_LATEST = "latest"


class _ShardFolder:
    """A checkpoint in many files, of which a complete one always exists: a new one is written to
    the other place, then a small file that names the valid one is replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def newest(self) -> Path | None:
        """The folder of the last complete checkpoint, or None if there is none yet."""
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
        """An empty folder for the next checkpoint."""
        newest = self.newest()
        place = next(self.path / name for name in _PLACES if self.path / name != newest)
        if place.exists():      # left by a process killed while writing
            shutil.rmtree(place)
        place.mkdir(parents=True)
        return place

    def publish(self, place: Path) -> None:
        """Declare the checkpoint at this place complete and valid from now on."""
        before = self.newest()
        write_atomically(self.path / _LATEST, f"{place.name}\n")
        if before is not None and before != place:
            shutil.rmtree(before)

    def drop(self) -> None:
        """Remove it all, because a later checkpoint was written elsewhere."""
        if self.path.exists():
            (self.path / _LATEST).unlink(missing_ok=True)
            shutil.rmtree(self.path)


CHECKPOINT_NAME = "checkpoint.pt"
"""File of a run: all that is needed to resume it or to use the model."""


class RunFolder:
    """The output folder of a run and the files in it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoint = self.path / CHECKPOINT_NAME
        self.metrics = self.path / "metrics.csv"        # loss and learning rate by step
        self.plot = self.path / "loss.png"
        self.codes = self.path / "codes.csv"            # flips and zeros by step and projection
        self.samples = self.path / "samples.txt"        # texts written by the model during training
        self.description = self.path / "run.json"       # settings, command, versions
        self.report = self.path / "report.html"         # all of these as one page
        self.tensorboard = self.path / "tensorboard"
        self.shards = _ShardFolder(self.path / "shards")

    @property
    def saved(self) -> Path:
        """The checkpoint to resume from: the folder of the last one written by several processes,
        or the file."""
        return self.shards.newest() or self.checkpoint

    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint of one process or of several."""
        return self.checkpoint.exists() or self.shards.newest() is not None

    def resumes(self, *, resume: bool, auto_resume: bool, overwrite: bool) -> bool:
        """Whether a run in this folder resumes from its checkpoint. With ``resume`` it must, with
        ``auto_resume`` it does if there is one; without any option a checkpoint is an error."""
        if resume + auto_resume + overwrite > 1:
            raise ValueError("give one of --resume, --auto-resume and --overwrite, not more")
        there = self.has_checkpoint()
        if resume and not there:
            raise ValueError(f"there is no run to resume in {self.path}: it has no "
                             f"{CHECKPOINT_NAME}; leave out --resume to start one")
        if there and not (resume or auto_resume or overwrite):
            raise ValueError(f"{self.path} has the checkpoint of a run: go on from it with "
                             f"--resume, replace it with --overwrite, or train in another folder "
                             f"with -o")
        return there and not overwrite

    @contextmanager
    def locked(self, note: Callable[[str], None] = lambda line: None) -> Iterator[None]:
        """Make the folder and lock it against other runs by ``flock`` for the life of this process;
        without ``flock``, ``note`` gets a line that says so."""
        self.path.mkdir(parents=True, exist_ok=True)
        path = self.path / ".lock"
        handle = self._lock(path, note)
        try:
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())
            yield
        finally:
            with suppress(OSError):     # while still locked
                path.unlink()
            os.close(handle)

    def _lock(self, path: Path, note: Callable[[str], None]) -> int:
        """The open lock file."""
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                if fcntl is None:
                    raise OSError("flock is missing")
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.read(handle, 32).decode(errors="replace").strip()
                os.close(handle)
                raise ValueError(
                    f"{self.path} is in use by another run, process {owner or 'unknown'}: wait for "
                    f"its end, or train in another folder with -o") from None
            except OSError as error:
                note(f"{self.path} cannot be locked ({error.strerror or error}): nothing keeps a "
                     f"second run out of it")
                return handle
            with suppress(FileNotFoundError):
                if os.path.samestat(
                        os.fstat(handle), os.stat(path)):
                    return handle
            os.close(handle)    # the owner removed the file between our opening and locking it
