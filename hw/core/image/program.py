"""A program of stages as memory words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sterna.hw.core.params.geometry import LEAVES, MAX_SLOTS, Geometry
from sterna.hw.parts.bits import from_ints, to_bits, to_ints
from sterna.hw.units.mac.weight_packing import row_codes
from sterna.model.quantized import Projection
from sterna.model.quantized.plan import StageKind, StagePlan

__all__ = ["ProgramImage", "Stage", "cluster_words", "pack_program", "place_stages"]


@dataclass(frozen=True, slots=True)
class ProgramImage:
    """The memories of a program.

    ``stages``, ``headers``: words of ``params.stage_layout`` and ``params.header_layout``.
    ``weights``: codes of ``rows * cols`` trits, two bits each, row by row.
    """

    params: Geometry
    stages: list[int]
    headers: list[int]
    weights: list[int]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the program of a token: some matrices of one shape and one input.

    ``plan``: its plan from the records. ``groups``: of rows of a matrix. ``chunks`` and ``tiles``:
    of the vector. ``weight``, ``header`` and ``state``: start of its weight words, groups of biases
    and words of states.
    """

    plan: StagePlan
    groups: int
    chunks: int
    tiles: int
    weight: int
    header: int
    state: int

    @property
    def kind(self) -> StageKind:
        """Kind of the stage, which determines the use of its results."""
        return self.plan.kind

    @property
    def rows(self) -> int:
        """Rows of each matrix."""
        return self.plan.rows

    @property
    def headers(self) -> int:
        """Groups of rows of all matrices."""
        return self.groups * len(self.plan.matrices)

    @property
    def words(self) -> int:
        """Weight words."""
        return self.headers * self.tiles


def place_stages(plans: Sequence[StagePlan], params: Geometry) -> list[Stage]:
    """Lay stages out one after another."""
    placed: list[Stage] = []
    weight = header = state = 0
    for plan in plans:
        stage = Stage(
            plan, params.groups(plan.rows, chunks=plan.kind not in LEAVES),
            params.groups(plan.columns) * params.rows // params.quant_lanes,
            -(-plan.columns // params.cols), weight, header, state)
        placed.append(stage)
        weight += stage.words
        header += stage.headers
        if stage.kind is StageKind.MLGRU:
            state += stage.groups * params.rows // params.cell_lanes
    return placed


def pack_program(
    stages: Sequence[Stage], projections: Mapping[str, Projection], params: Geometry, *,
    head_fill: int = 0,
) -> ProgramImage:
    """Pack stages; a row beyond the end of a head has the bias ``head_fill``."""
    low, _ = params.limits.shifts
    layout = params.stage_layout
    packed: list[int] = []
    headers: list[int] = []
    weights: list[int] = []
    for stage in stages:
        matrices = [projections[name] for name in stage.plan.matrices]
        groups = stage.groups
        weight = np.stack([each.weight for each in matrices])
        rest = groups * params.rows - stage.rows
        padded = np.pad(weight, ((0, 0), (0, rest), (0, -weight.shape[2] % params.cols))).reshape(
            len(matrices), groups, params.rows, stage.tiles, params.cols).swapaxes(0, 1)
        # As wide as the lowest logit.
        bias = np.pad(np.stack([each.bias for each in matrices]).astype(np.int64),
                      ((0, 0), (0, rest)),
                      constant_values=head_fill if stage.kind is StageKind.HEAD else 0)
        unused = [0] * (MAX_SLOTS - len(matrices))
        packed.append(layout.const({
            "kind": int(stage.kind), "last_slot": len(matrices) - 1, "tiles": stage.tiles,
            "chunks": stage.chunks, "headers": stage.headers, "outputs": stage.rows,
            "weight": stage.weight, "header": stage.header, "state": stage.state,
            "k": [*(each.k for each in matrices), *unused],
            "shift": [*(each.shift - low for each in matrices), *unused],
        }).as_value().value)
        # The order of use: [groups, slots, rows, tiles, cols] with tiles before rows.
        codes = row_codes(padded.transpose(0, 1, 3, 2, 4), params.style)
        weights += to_ints(to_bits(
            codes.reshape(stage.words, -1), params.mac.code_bits))
        minus = (padded == -1).sum(axis=(3, 4))
        own = bias.reshape(len(matrices), groups, params.rows).transpose(1, 0, 2)
        fields = [to_bits(each.reshape(-1, 1), bits).reshape(-1, params.post_lanes, bits)
                  for each, bits in ((own, params.bias_bits), (minus, params.minus_bits))]
        headers += to_ints(np.concatenate(fields, axis=2).reshape(-1, params.header_layout.size))
    return ProgramImage(params, packed, headers, weights)


def cluster_words(words: Sequence[int], params: Geometry, cluster: int) -> list[int]:
    """Extract the codes of a cluster's columns from weight words, row by row."""
    size = params.cols // params.clusters
    bits = from_ints(words, 0, 2 * params.rows * params.cols).reshape(
        len(words), params.rows, params.clusters, 2 * size)
    return to_ints(np.ascontiguousarray(bits[:, :, cluster]).reshape(len(words), -1))
