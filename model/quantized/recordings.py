"""Recordings of a sensor, frame by frame, and the accuracy of a network on them."""

from __future__ import annotations

import csv
import math
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

__all__ = ["Accuracy", "Recordings", "accuracy", "read_frames", "results_of"]


@dataclass(frozen=True, slots=True)
class Recordings:
    """Labelled recordings of different lengths.

    ``frames`` are real numbers ``[recordings][length, channels]``, ``labels`` integers
    ``[recordings]`` from 0.
    """

    frames: list[np.ndarray]
    labels: np.ndarray

    def __post_init__(self) -> None:
        if not self.frames or len(self.frames) != len(self.labels):
            raise ValueError(
                f"there must be recordings, with a label each, got {len(self.frames)} and "
                f"{len(self.labels)} labels")
        channels = {each.shape[1:] for each in self.frames}
        if len(channels) != 1 or len(next(iter(channels))) != 1:
            raise ValueError(f"all frames must have as many channels, got {sorted(channels)}")
        for index, each in enumerate(self.frames):
            if not len(each):
                raise ValueError(f"recording {index} has no frames")
            if not np.isfinite(each).all():
                raise ValueError(f"recording {index} has a number that is not finite")

    @classmethod
    def load(cls, path: str | Path, *, held_out: bool | None = None) -> Recordings:
        """Read an ``.npz``: ``frames`` numbers ``[frames, channels]`` of all recordings, one after
        the other, ``lengths`` and ``labels`` integers ``[recordings]``, and optionally ``step``, a
        factor for all frames, and ``held_out``, a boolean per recording.

        ``held_out`` selects those that are, or those that are not; None selects all. ValueError if
        an array is missing or has another shape or type, a number is not finite, or nothing is
        left; the message names the file.
        """
        try:
            with np.load(path) as file:
                arrays = {name: file[name] for name in file.files}
        except (zipfile.BadZipFile, ValueError, EOFError) as error:
            raise ValueError(f"{path}: not an .npz of arrays ({error})") from error
        try:
            missing = {"frames", "lengths", "labels"} - arrays.keys()
            if missing:
                raise ValueError(f"the array {min(missing)} is missing")
            frames, lengths, labels = (arrays[name] for name in ("frames", "lengths", "labels"))
            if frames.ndim != 2 or frames.dtype.kind not in "iuf":
                raise ValueError(
                    f"frames must be numbers [frames, channels], got {frames.dtype} "
                    f"{list(frames.shape)}")
            for name in ("lengths", "labels"):
                if arrays[name].ndim != 1 or arrays[name].dtype.kind not in "iu":
                    raise ValueError(
                        f"{name} must be whole numbers [recordings], got {arrays[name].dtype} "
                        f"{list(arrays[name].shape)}")
            if lengths.min(initial=0) < 0:
                raise ValueError(f"lengths must be from 0, got {lengths.min()}")
            if lengths.sum() != len(frames):
                raise ValueError(f"lengths add up to {lengths.sum()}, and there are {len(frames)} "
                                 f"frames")
            step = arrays.get("step", np.array(1.0))
            if step.ndim or step.dtype.kind not in "iuf":
                raise ValueError(f"step must be a number, got {step.dtype} {list(step.shape)}")
            parts = np.split(frames * np.float64(step), np.cumsum(lengths)[:-1])
            chosen = arrays.get("held_out", np.full(lengths.shape, held_out or False))
            if chosen.dtype.kind != "b" or chosen.shape != lengths.shape:
                raise ValueError(
                    f"held_out must be booleans [recordings], got {chosen.dtype} "
                    f"{list(chosen.shape)}")
            if held_out is not None:
                chosen = np.flatnonzero(chosen == held_out)
                parts, labels = [parts[index] for index in chosen], labels[chosen]
            return cls(parts, labels.astype(np.int64))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


class Runs(Protocol):
    """Anything that runs frames: ``IntegerModel``, an ONNX session."""

    def run(self, frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Results ``[batch, length, width]`` of frames ``[batch, length, channels]``, and the
        state."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The number of recordings, of those that a network got right, and of values in their frames
    that exceeded the range of its input and were clipped."""

    recordings: int
    right: int
    clipped: int

    @property
    def share(self) -> float:
        """Share of correct recordings."""
        return self.right / self.recordings


def results_of(model: Runs, frames: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Results ``[length, width]`` of each of several sequences of integer frames ``[length,
    channels]``; those of equal length run in parallel."""
    found: dict[int, np.ndarray] = {}
    lengths = np.array([len(each) for each in frames])
    for length in np.unique(lengths):
        same = np.flatnonzero(lengths == length)
        results, _ = model.run(np.stack([frames[index] for index in same.tolist()]))
        found.update(zip(same.tolist(), results, strict=True))
    return [found[index] for index in range(len(frames))]


def accuracy(
    model: Runs, recordings: Recordings,
    integers: Callable[[np.ndarray], tuple[np.ndarray, int]],
) -> Accuracy:
    """Count the recordings that a network gets right: the largest mean of its results over the
    frames is that of the label. ``integers`` is or acts as :meth:`QuantizedModel.integers`.

    Raises ValueError if frames have the wrong length for the network, or a label is not one of its
    results.
    """
    frames, clipped = zip(*map(integers, recordings.frames), strict=True)
    results = results_of(model, frames)
    least, most, width = recordings.labels.min(), recordings.labels.max(), results[0].shape[1]
    if least < 0 or most >= width:
        raise ValueError(f"labels must be from 0 to {width - 1}, of as many as the network has "
                         f"results, got {least} to {most}")
    found = np.array([int(each.sum(axis=0, dtype=np.int64).argmax()) for each in results])
    return Accuracy(len(found), int((found == recordings.labels).sum()), sum(clipped))


def read_frames(path: str | Path, channels: int) -> np.ndarray:
    """Frames of a CSV file, float64 ``[length, channels]``: one per line, one number per channel,
    with or without a header.

    Raises ValueError if a line has another number of fields, a field is not a finite number, or
    there is no frame; the message names the line.
    """
    frames: list[list[float]] = []
    with Path(path).open(newline="", encoding="utf-8-sig") as file:
        for line, row in enumerate(csv.reader(file), 1):
            if len(row) != channels:
                raise ValueError(f"{path}: line {line} has {len(row)} fields, and a frame has "
                                 f"{channels} channels")
            numbers = [_number(field) for field in row]
            if line == 1 and all(number is None for number in numbers):
                continue    # a header
            for field, number in zip(row, numbers, strict=True):
                if number is None:
                    raise ValueError(f"{path}: line {line} has {field!r} where there must be a "
                                     f"finite number")
            frames.append([number for number in numbers if number is not None])
    if not frames:
        raise ValueError(f"{path}: there is no frame in it")
    return np.array(frames)


def _number(field: str) -> float | None:
    """A finite number, or None."""
    try:
        number = float(field)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
