"""Limits of a core or a unit of layers: its largest programs and their formats."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import Any

from sterna.hw.parts.bits import signed_bits
from sterna.model.checks import check_whole
from sterna.model.profile import NumericProfile
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.plan import StageKind, StagePlan

__all__ = ["Limits", "StageLimits"]


@dataclass(frozen=True, slots=True)
class StageLimits:
    """The largest of some similar stages, and the most of them in a program."""

    kind: StageKind
    slots: int  #: matrices of one shape and one input
    rows: int
    columns: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest programs, and their common formats."""

    profile: NumericProfile
    program: tuple[StageLimits, ...]
    shifts: tuple[int, int]  #: smallest and largest right shift of a projection
    #: signed bits of an element of the embedding, at most those of the residual stream; 0 for none
    embedding_bits: int = 0
    normalizes: bool = True  #: whether a norm makes the activations; otherwise they are inputs
    requantizes: bool = True  #: whether sums are scaled and rounded; otherwise output as they are

    def __post_init__(self) -> None:
        for each in self.program:
            check_whole("rows of a stage", each.rows, 1, 1 << 20)
            check_whole("columns of a stage", each.columns, 1, 1 << 20)
            check_whole("number of stages", each.count, 1, 2048)
        low, high = self.shifts
        check_whole("smallest shift", low, 0, high)
        check_whole("largest shift", high, 0, NumericProfile.max_shift)
        check_whole("embedding_bits", self.embedding_bits, 0, self.profile.x.bits)

    @classmethod
    def of(cls, *models: QuantizedModel) -> Limits:
        """The narrowest limits that admit all of these models.

        Raises ValueError if the core does not support the architecture of a model, or if their
        formats differ.
        """
        profiles = {model.profile for model in models}
        if len(profiles) != 1:
            raise ValueError(
                f"a core has one set of formats, got models of "
                f"{', '.join(sorted(profile.name for profile in profiles)) or 'no profile'}")
        shifts = [each.shift for model in models for each in model.projections.values()]
        return cls.of_stages(
            profiles.pop(), [model.stages for model in models], (min(shifts), max(shifts)),
            max(signed_bits(model.embedding) for model in models))

    @classmethod
    def of_stages(
        cls, profile: NumericProfile, programs: Iterable[Sequence[StagePlan]],
        shifts: tuple[int, int], embedding_bits: int,
    ) -> Limits:
        """The narrowest limits that admit all of these programs."""
        # For each kind, the largest stages of all programs, then the next ones, and so on.
        most: dict[tuple[StageKind, int], list[tuple[int, int]]] = {}
        for stages in programs:
            for key, own in _by_kind(stages).items():
                sizes = [(each.columns, each.rows) for each in own]
                most[key] = [(max(one[0], other[0]), max(one[1], other[1])) for one, other in
                             zip_longest(most.get(key, []), sizes, fillvalue=(0, 0))]
        alike = groupby((*key, *size) for key in sorted(most) for size in most[key])
        return cls(profile, tuple(
            StageLimits(kind, slots, rows, columns, len(list(group)))
            for (kind, slots, columns, rows), group in alike), shifts, embedding_bits)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Limits:
        """Undo ``dataclasses.asdict``."""
        program = tuple(StageLimits(**{**each, "kind": StageKind(each["kind"])})
                        for each in content["program"])
        return cls(**{**content, "profile": NumericProfile.from_json(content["profile"]),
                      "program": program, "shifts": tuple(content["shifts"])})

    def check(self, model: QuantizedModel) -> None:
        """Raise ValueError if a model exceeds these limits; the message says which and how."""
        if model.profile != self.profile:
            raise ValueError(f"the core computes in the formats of {self.profile.name}, "
                             f"the model has those of {model.profile.name}")
        for (kind, slots), stages in _by_kind(model.stages).items():
            most = [each for each in self.program if (each.kind, each.slots) == (kind, slots)
                    for _ in range(each.count)]
            if len(stages) > len(most):
                raise ValueError(f"the model has {len(stages):,} stages of kind {kind.name}, the "
                                 f"core takes {len(most):,}")
            for stage, limit in zip(stages, most, strict=False):
                if stage.rows > limit.rows or stage.columns > limit.columns:
                    raise ValueError(
                        f"{stage.matrices[0]} has {stage.rows:,} x {stage.columns:,} weights, the "
                        f"core takes {limit.rows:,} x {limit.columns:,} there")
        bits = signed_bits(model.embedding)
        if bits > self.embedding_bits:
            raise ValueError(f"the model has {bits} bits in its embedding, the core takes "
                             f"{self.embedding_bits}")
        low, high = self.shifts
        for name, projection in model.projections.items():
            if not low <= projection.shift <= high:
                raise ValueError(f"{name} has a shift of {projection.shift}, "
                                 f"the core takes {low} to {high}")


def _by_kind(stages: Sequence[StagePlan]) -> dict[tuple[StageKind, int], list[StagePlan]]:
    """The stages by kind and number of matrices, the largest first."""
    found: dict[tuple[StageKind, int], list[StagePlan]] = defaultdict(list)
    for each in sorted(stages, key=lambda each: (each.columns, each.rows), reverse=True):
        found[each.kind, len(each.matrices)].append(each)
    return dict(sorted(found.items()))
