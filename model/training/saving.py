"""Writing the checkpoint of a run, and going on from it, whatever the number of processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sterna.model.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from sterna.model.training.distributed.layout import batch_in_parts, own
from sterna.model.training.distributed.shards import (
    check_files,
    list_files,
    load_tensors,
    save_tensors,
    shapes_of_tensors,
)
from sterna.model.training.run_folder import RunFolder
from sterna.model.training.shard_folder import POSITION_NAME
from sterna.model.training.state import TrainState

__all__ = ["restore_run", "save_run"]


def save_run(
    state: TrainState, folder: RunFolder, budget: dict[str, Any], *, finished: bool,
) -> None:
    """Write a checkpoint; called by all processes.

    One process writes one file. Several write their parts side by side, and one file only when
    the run is finished, for whoever uses the model. Until then none is left of steps before, or of
    a run that this one replaces: it would be used as if it were of this run and step.

    Raises
    ------
    FloatingPointError
        If a weight is not finite; a good checkpoint is never replaced by this.
    OSError
        If the folder cannot be written; the checkpoint before is then still whole.
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
    save_tensors(_tensors(state), place)
    processes.on_first(lambda: save_checkpoint(state.position(budget), place / POSITION_NAME))
    list_files(place, processes)

    def publish() -> None:
        folder.shards.publish(place)
        folder.checkpoint.unlink(missing_ok=True)

    processes.on_first(publish)


def restore_run(state: TrainState, folder: RunFolder) -> tuple[Path, dict[str, Any] | None]:
    """Take over the last checkpoint of a run, whichever number of processes wrote it.

    Returns
    -------
    Where it was, and ``to_json()`` of the budget then.

    Raises
    ------
    CheckpointError
        If it is damaged, or of another run.
    """
    processes = state.processes
    place = processes.first_says(processes.on_first(folder.shards.newest))
    if place is None:
        found = load_checkpoint(folder.checkpoint)
        state.restore(found, folder.checkpoint)
        return folder.checkpoint, found.budget
    try:
        check_files(place, processes)
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
    """All tensors of a run, of which this process holds a part or a copy."""
    tensors = {"weights": state.model.state_dict(), "moments": {
        str(number): moments for number, moments in state.optimizer.state_dict()["state"].items()}}
    if state.settings.recipe.carry_state:
        tensors["carried"] = {
            f"{layer}.{number}": batch_in_parts(each, state.processes)
            for layer, parts in enumerate(state.carried) for number, each in enumerate(parts)}
    return tensors


def _load_tensors(state: TrainState, step: int, place: Path) -> None:
    """Read what :func:`_tensors` gave, into a state that may be laid out in another way."""
    shapes = shapes_of_tensors(place)
    tensors: dict[str, Any] = {"weights": state.model.state_dict(), "moments": {}}
    parameters = [each for group in state.optimizer.param_groups for each in group["params"]]
    for number, parameter in enumerate(parameters if step else ()):
        tensors["moments"][str(number)] = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
    if state.settings.recipe.carry_state:
        tensors["carried"] = {
            name.removeprefix("carried."): batch_in_parts(
                _empty_part(state, shape), state.processes)
            for name, shape in shapes.items() if name.startswith("carried.")}
    load_tensors(tensors, place)
    state.restore_moments(
        {int(number): moments for number, moments in tensors["moments"].items()}, step)
    if state.settings.recipe.carry_state:
        carried = tuple(
            tuple(own(tensors["carried"][f"{layer}.{number}"]) for number in range(len(parts)))
            for layer, parts in enumerate(state.carried))
        state.restore_carried(carried)


def _empty_part(state: TrainState, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.zeros((shape[0] // state.processes.size, *shape[1:]), device=state.device)
