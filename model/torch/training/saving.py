"""Writing the checkpoint of a run and resuming from it, with any number of processes.

Several processes write their parts of the tensors into one folder in the format of
``torch.distributed.checkpoint``. Its index is a pickle, which can run code when read, and has no
checksums: swapped files of two processes would go unnoticed. So a file of checksums is added.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from sterna.model.files import write_atomically
from sterna.model.torch.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from sterna.model.torch.training.distributed import Processes, batch_in_parts, own
from sterna.model.torch.training.optimizer import restore_adamw
from sterna.model.torch.training.run_folder import POSITION_NAME, RunFolder
from sterna.model.torch.training.state import TrainState

__all__ = ["restore_run", "save_run"]


def save_run(
    state: TrainState, folder: RunFolder, budget: dict[str, Any], *, finished: bool,
) -> None:
    """Write a checkpoint; called by all processes. A non-finite weight ends the run before a good
    checkpoint is replaced.

    One process writes one file. Several write their parts to a folder, and one file only when the
    run is finished; a file of earlier steps is removed, as it would be taken for the current one.
    """
    state.check_finite()
    processes = state.processes
    if processes.size == 1 or finished:
        whole = state.checkpoint(budget)

        def write() -> None:
            save_checkpoint(whole, folder.checkpoint)
            folder.shards.drop()

        processes.on_first(write)
        return
    place = processes.first_says(processes.on_first(folder.shards.free_place))
    assert place is not None
    _write(_tensors(state), place)
    processes.on_first(lambda: save_checkpoint(state.position(budget), place / POSITION_NAME))
    _list_files(place, processes)

    def publish() -> None:
        folder.shards.publish(place)
        folder.checkpoint.unlink(missing_ok=True)

    processes.on_first(publish)


def restore_run(state: TrainState, folder: RunFolder) -> tuple[Path, dict[str, Any] | None]:
    """Load the last checkpoint of a run, written by any number of processes; return its path and
    ``to_json()`` of the budget then."""
    processes = state.processes
    place = processes.first_says(processes.on_first(folder.shards.newest))
    if place is None:
        found = load_checkpoint(folder.checkpoint)
        state.restore(found, folder.checkpoint)
        return folder.checkpoint, found.budget
    try:
        _check_files(place, processes)
        found = load_checkpoint(place / POSITION_NAME)
    except ValueError as error:
        raise CheckpointError(f"cannot resume from {place}: {error}") from error
    state.check_same_run(found, place)
    try:
        _load_tensors(state, found.step, place)
    except (ValueError, RuntimeError) as error:
        raise CheckpointError(f"cannot resume from {place}: {error}") from error
    state.go_to(found)
    return place, found.budget


def _tensors(state: TrainState) -> dict[str, Any]:
    """All tensors of a run; this process holds a part or a copy of each."""
    tensors = {"weights": state.model.state_dict(), "moments": {
        str(number): moments for number, moments in state.optimizer.state_dict()["state"].items()}}
    if state.settings.recipe.carry_state:
        tensors["carried"] = {
            f"{layer}.{number}": batch_in_parts(each, state.processes)
            for layer, parts in enumerate(state.carried) for number, each in enumerate(parts)}
    return tensors


def _load_tensors(state: TrainState, step: int, place: Path) -> None:
    """Read the result of :func:`_tensors` into a state that may be sharded differently."""
    tensors: dict[str, Any] = {"weights": state.model.state_dict(), "moments": {}}
    parameters = [each for group in state.optimizer.param_groups for each in group["params"]]
    for number, parameter in enumerate(parameters if step else ()):
        tensors["moments"][str(number)] = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
    if state.settings.recipe.carry_state:
        tensors["carried"] = {
            name.removeprefix("carried."): batch_in_parts(torch.zeros(
                (shape[0] // state.processes.size, *shape[1:]), device=state.device),
                state.processes)
            for name, shape in _shapes_of_tensors(place).items() if name.startswith("carried.")}
    _fill(tensors, place)
    restore_adamw(state.optimizer, {
        int(number): moments for number, moments in tensors["moments"].items()})
    if state.settings.recipe.carry_state:
        carried = tuple(
            tuple(own(tensors["carried"][f"{layer}.{number}"]) for number in range(len(parts)))
            for layer, parts in enumerate(state.carried))
        state.restore_carried(carried)


_SUMS = "sha256.json"
"""File with the names and SHA-256 of the others."""


def _write(tensors: dict[str, Any], folder: Path) -> None:
    """Write a nested dictionary of tensors; called by every process. Replicated tensors are written
    once."""
    try:
        with _alone() as alone:
            dcp.save(tensors, checkpoint_id=folder, no_dist=alone)
    except CheckpointException as error:
        raise OSError(f"cannot write {folder} ({_reason(error)})") from error


def _fill(tensors: dict[str, Any], folder: Path) -> None:
    """Fill a dictionary like the saved one, in place, with any sharding of its tensors."""
    try:
        with _alone() as alone:
            dcp.load(tensors, checkpoint_id=folder, no_dist=alone)
    except CheckpointException as error:
        raise ValueError(f"{folder} is damaged, or of another model ({_reason(error)})") from error


def _shapes_of_tensors(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors in a folder, by dotted path in the nested dictionary."""
    try:
        found = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
        return {name: tuple(each.size) for name, each in found.items() if hasattr(each, "size")}
    except Exception as error:      # a changed bit of a pickle can raise anything
        raise ValueError(
            f"{folder} is damaged: its index cannot be read ({type(error).__name__})") from error


def _list_files(folder: Path, processes: Processes) -> None:
    """Write the checksums of the files in a folder, now that all are written."""
    names = processes.first_says(processes.on_first(
        lambda: sorted(path.name for path in folder.iterdir() if path.name != _SUMS)))
    assert names is not None
    sums = _sums(folder, names, processes)
    if None in sums.values():
        raise OSError(f"cannot read what was written to {folder}")
    processes.on_first(lambda: write_atomically(folder / _SUMS, json.dumps(sums, indent=1)))


def _check_files(folder: Path, processes: Processes) -> None:
    """Refuse a folder whose files differ from the checksums of :func:`_list_files`."""
    known = processes.first_says(processes.on_first(lambda: _listed(folder)))
    assert known is not None
    for name, found in _sums(folder, sorted(known), processes).items():
        if found != known[name]:
            raise ValueError(f"{name} is {'missing' if found is None else 'damaged'}")


def _listed(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / _SUMS).read_bytes()))
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"{_SUMS} is damaged or missing ({type(error).__name__})") from error


def _sums(folder: Path, names: list[str], processes: Processes) -> dict[str, str | None]:
    """The checksum of every file, None if it cannot be read; each process computes its share, so
    all must call this."""
    share: dict[str, str | None] = {}
    for name in names[processes.rank::processes.size]:
        try:
            with open(folder / name, "rb") as file:
                share[name] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            share[name] = None
    return {name: found for part in processes.every(share) for name, found in part.items()}


@contextmanager
def _alone() -> Iterator[bool]:
    """Whether there is no process group; suppresses torch's warning about that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield not dist.is_initialized()


def _reason(error: CheckpointException) -> str:
    """The first of the processes' errors."""
    first = next(iter(error.failures.values()))[0]
    return f"{type(first).__name__}: {' '.join(str(first).split()):.300}"
