"""The program of the core: the projections of a token, in the order in which they run.

A *stage* is what happens between two quantisations: one vector is multiplied with one, two
or three matrices. The rows of those matrices are interleaved, so that f, c and g of a
channel (or gate and up) leave the array one after the other, on the same lane.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from sterna.hw.core.plan.params import CoreParams
from sterna.model.config import ModelConfig

__all__ = ["MAX_SLOTS", "Stage", "StageKind", "program"]

MAX_SLOTS = 3
"""Most matrices interleaved in a stage: f, c and g."""


class StageKind(enum.IntEnum):
    """Where the results of a stage go."""

    MLGRU = 0
    """f, c and g: to the MLGRU unit."""
    RESIDUAL = 1
    """out or down: added to the residual stream."""
    GLU = 2
    """gate and up: to the GLU unit."""
    HEAD = 3
    """The logits."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage.

    Parameters
    ----------
    kind
        Where its results go.
    projections
        Names of its matrices, in the order of their slots.
    norm
        Name of the norm whose quantised vector it multiplies.
    rows, columns
        Shape of each of its matrices.
    groups
        Groups of ``params.rows`` rows in each matrix.
    tiles
        Tiles of ``params.cols`` columns: beats of a group.
    first_weight, first_header
        Position of its first weight word, and of its first row header (one for each group
        of each matrix).
    """

    kind: StageKind
    projections: tuple[str, ...]
    norm: str
    rows: int
    columns: int
    groups: int
    tiles: int
    first_weight: int
    first_header: int

    @property
    def slots(self) -> int:
        """Interleaved matrices."""
        return len(self.projections)

    @property
    def headers(self) -> int:
        """Groups of all matrices together."""
        return self.groups * self.slots

    @property
    def beats(self) -> int:
        """Beats of the array."""
        return self.headers * self.tiles


_PARTS = (
    (StageKind.MLGRU, ("mlgru.f", "mlgru.c", "mlgru.g")),
    (StageKind.RESIDUAL, ("mlgru.out",)),
    (StageKind.GLU, ("glu.gate", "glu.up")),
    (StageKind.RESIDUAL, ("glu.down",)),
)


def program(params: CoreParams) -> list[Stage]:
    """Return the stages of a token.

    >>> from sterna.model.profile import S16
    >>> stages = program(CoreParams(ModelConfig.named("nano"), S16, rows=8, cols=64))
    >>> [(stage.kind.name, stage.beats) for stage in stages[:4]]
    [('MLGRU', 24), ('RESIDUAL', 8), ('GLU', 48), ('RESIDUAL', 24)]
    """
    named = [
        (kind, tuple(f"layer{layer}.{part}" for part in parts))
        for layer in range(params.config.layers) for kind, parts in _PARTS]
    named.append((StageKind.HEAD, ("head",)))

    shapes = params.config.projections()
    stages: list[Stage] = []
    weight = header = 0
    for kind, names in named:
        rows, columns = shapes[names[0]]
        stage = Stage(
            kind, names, ModelConfig.norm_of(names[0]), rows, columns,
            params.mac.groups(rows), params.mac.beats_per_group(columns), weight, header)
        stages.append(stage)
        weight += stage.beats
        header += stage.headers
    return stages
