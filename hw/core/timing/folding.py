"""Layers that take the same cycles for the same reasons, told once."""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from sterna.hw.core.timing.steady_state import SteadyState

__all__ = ["FoldedStages", "fold_stages", "folded_name", "runs_alike"]

_LAYER = re.compile(r"layer(\d+) (.+)")


@dataclass(frozen=True, slots=True)
class FoldedStages:
    """A line of a table or a drawing: a stage, or layers that are as one shown before.

    Parameters
    ----------
    name
        Of the stage; ``layers 1 to 3`` for those left out.
    stages
        Names of the stages that it stands for.
    layers
        How many layers are left out here; 0 for a stage.
    like
        The layer that they are like; None for a stage.
    """

    name: str
    stages: tuple[str, ...]
    layers: int = 0
    like: int | None = None


def runs_alike(signatures: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return first and last position of each run of equal signatures.

    >>> runs_alike(["a", "b", "b", "b", "a"])
    [(0, 0), (1, 3), (4, 4)]
    """
    runs: list[tuple[int, int]] = []
    for _, run in itertools.groupby(range(len(signatures)), key=lambda at: signatures[at]):
        places = list(run)
        runs.append((places[0], places[-1]))
    return runs


def folded_name(first: int, last: int) -> str:
    """What layers that are left out are called.

    >>> folded_name(1, 3), folded_name(2, 2)
    ('layers 1 to 3', 'layer 2')
    """
    return f"layer {first}" if first == last else f"layers {first} to {last}"


def fold_stages(state: SteadyState) -> list[FoldedStages]:
    """Return the lines of a table of stages: a layer like the one before is not told again.

    Layers are alike if each of their stages has the same beats, and the same waits for the
    same causes and sequences.
    """
    layers: dict[int, dict[str, str]] = {}
    for name in state.names:
        if found := _LAYER.fullmatch(name):
            layers.setdefault(int(found[1]), {})[found[2]] = name
    signatures = [
        tuple((part, state.beats.get(name, 0), tuple(sorted(
            (sequence, cause, cycles) for (sequence, at, cause), cycles in state.idle.items()
            if at == name))) for part, name in stages.items())
        for stages in layers.values()]
    lines = [FoldedStages(name, (name,)) for name in state.names if not _LAYER.fullmatch(name)]
    told: list[FoldedStages] = []
    for first, last in runs_alike(signatures):
        told += [FoldedStages(name, (name,)) for name in layers[first].values()]
        if last > first:
            left_out = tuple(name for layer in range(first + 1, last + 1)
                             for name in layers[layer].values())
            told.append(FoldedStages(folded_name(first + 1, last), left_out, last - first, first))
    return [lines[0], *told, *lines[1:]]
