"""The figures of a run for TensorBoard, if its package is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sterna.model.extras import install_command

__all__ = ["TensorBoardWriter", "check_tensorboard"]


def check_tensorboard() -> None:
    """Refuse to go on without the package.

    Raises
    ------
    ValueError
        If ``tensorboard`` is not installed.
    """
    try:
        import torch.utils.tensorboard  # noqa: F401  (whether it is there)
    except ImportError as error:
        raise ValueError(
            f"--tensorboard needs the package tensorboard: {install_command('tensorboard')}"
        ) from error


class TensorBoardWriter:
    """Writes event files, which ``tensorboard --logdir`` shows.

    Parameters
    ----------
    folder
        Where to; TensorBoard itself leaves out steps that a resumed run repeats.
    resume_step
        The step that the run goes on from, 0 for a new one.
    """

    def __init__(self, folder: str | Path, resume_step: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter
        self._writer = SummaryWriter(
            str(folder), purge_step=resume_step + 1 if resume_step else None)

    def add(self, row: Mapping[str, float | None]) -> None:
        """Write the figures of one row of ``metrics.csv``, under the names of its columns."""
        step = row["step"]
        assert step is not None
        for name, value in row.items():
            if name != "step" and value is not None and value == value:
                self._writer.add_scalar(
                    name, value, int(step))

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
