"""Records as stages: a norm, the ternary matrices after it, and the use of their results.

Gateware, and anything else that computes whole stages, takes the order of a model from here.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from sterna.model.config import ModelConfig
from sterna.model.profile import FixedPoint, NumericProfile
from sterna.model.quantized.records import (
    Add,
    Embedding,
    Input,
    Multiply,
    Norm,
    Project,
    Record,
    Recur,
    Sigmoid,
    glu_cell,
    mlgru_cell,
)

__all__ = ["StageKind", "StagePlan", "formats_of", "plan", "shape_of"]


class StageKind(enum.IntEnum):
    """Use of the results of a stage. The numbers are stored in images."""

    MLGRU = 0
    """f, c and g: to the MLGRU unit."""
    RESIDUAL = 1
    """Added to the residual stream."""
    GLU = 2
    """gate and up: to the GLU unit."""
    HEAD = 3
    """Output: logits, or the results of a network."""
    BEGIN = 4
    """Start of the residual stream."""
    PASS = 5
    """To the next norm only."""
    LAST = 6
    """Added to the residual stream, and the sum is output."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A stage, by the names of its records.

    ``matrices`` share one shape and input, in the order in which the following unit takes their
    results. ``values`` are computed from those, each with its name within the unit: ``f``, ``g``,
    ``c``, ``h`` and ``o`` of an MLGRU, ``silu`` and ``p`` of a GLU, ``x`` of a residual stream. The
    last of them is the input of the next norm.
    """

    kind: StageKind
    matrices: tuple[str, ...]
    rows: int
    columns: int
    norm: str = ""
    values: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Unit:
    """A unit that takes the results of several matrices: its records, the names of the matrices in
    them, and those of the reported values."""

    cell: Callable[[NumericProfile, str, int], list[Record]]
    slots: tuple[str, ...]
    values: Mapping[str, str]


_UNITS: Mapping[StageKind, _Unit] = MappingProxyType({
    StageKind.MLGRU: _Unit(mlgru_cell, ("f", "c", "g"), {
        "f": "f.sigmoid", "g": "g.sigmoid", "c": "c.silu", "h": "h", "o": "o"}),
    StageKind.GLU: _Unit(glu_cell, ("gate", "up"), {"silu": "gate.silu", "p": "p"}),
})


@lru_cache(maxsize=64)
def plan(records: tuple[Record, ...], profile: NumericProfile) -> tuple[StagePlan, ...]:
    """The stages of records.

    Raises ValueError if they do not form stages, or their formats are not those of the profile; the
    message names the first such record.
    """
    return _Planner(records, profile).stages


class _Planner:
    """Goes through records from first to last."""

    def __init__(self, records: Sequence[Record], profile: NumericProfile) -> None:
        self._profile = profile
        self._left = list(reversed(records))
        self._added = {each.x for each in records if isinstance(each, Add)}
        first = records[0]
        if isinstance(first, Embedding | Input):
            self._expect(replace(first, output=profile.x))
        # The value to normalise next, the one to add to, and their width.
        self._value = self._stream = (
            first.name if isinstance(first, Embedding | Input) else next(iter(first.reads)))
        self._width = first.width
        found = []
        while self._left:
            found.append(self._stage())
        if not found or found[-1].kind not in (StageKind.HEAD, StageKind.LAST):
            raise ValueError(f"{self._value} goes nowhere: a Project or an Add must come last")
        self.stages = tuple(found)

    def _expect(self, wanted: Record) -> None:
        """Take the next record, which must equal this one except for its name."""
        if not self._left:
            raise ValueError(f"there is no {type(wanted).__name__} after {self._value}")
        found = self._left.pop()
        if replace(found, name="") != replace(wanted, name=""):
            raise ValueError(_difference(found, wanted))

    def _stage(self) -> StagePlan:
        profile = self._profile
        norm = self._left[-1]
        self._expect(Norm("", self._value, self._width, profile.reciprocal_bits, profile.root_frac,
                          profile.scale_frac))
        projects = []
        while self._left and isinstance(project := self._left[-1], Project):
            projects.append(project)
            self._left.pop()
        if not projects:
            raise ValueError(f"nothing multiplies what {norm.name} gives")
        width, self._width = self._width, projects[0].rows
        kind, output, values = self._behind(projects)
        for project in projects:
            wanted = Project(
                project.name, norm.name, self._width, width, profile.scale_frac,
                profile.mantissa_bits, profile.combine_shift, output,
                kind not in (StageKind.RESIDUAL, StageKind.LAST))
            if project != wanted:
                raise ValueError(_difference(project, wanted))
        if values:
            *_, self._value = values.values()
        return StagePlan(kind, tuple(each.name for each in projects), self._width, width,
                         norm.name, tuple(values.items()))

    def _behind(
        self, projects: Sequence[Project],
    ) -> tuple[StageKind, FixedPoint, dict[str, str]]:
        """Take the records after the projections of a stage; return the kind of stage, the format
        of the results, and the values."""
        if len(projects) > 1:
            kind = self._unit(projects)
            return kind, self._profile.z, self._through(_UNITS[kind], projects)
        one, x = projects[0], self._profile.x
        result = one.result
        if not self._left:
            return StageKind.HEAD, self._profile.logit, {}
        if isinstance(following := self._left[-1], Add):
            self._expect(Add("", self._stream, result, self._width, x))
            self._stream = following.name
            return StageKind.RESIDUAL if self._left else StageKind.LAST, x, {"x": following.name}
        if result in self._added:
            self._stream = result
            return StageKind.BEGIN, x, {"x": result}
        # A norm does not depend on the position of the binary point.
        return StageKind.PASS, one.output if one.output.bits == x.bits else x, {"x": result}

    def _unit(self, projects: Sequence[Project]) -> StageKind:
        for kind, unit in _UNITS.items():
            if len(unit.slots) == len(projects):
                return kind
        raise ValueError(f"no unit takes the {len(projects)} results of "
                         f"{', '.join(each.name for each in projects)}")

    def _through(self, unit: _Unit, projects: Sequence[Project]) -> dict[str, str]:
        """Take the records of a unit; return their names, keyed by those within the unit."""
        names = {f".{slot}.z": project.result
                 for slot, project in zip(unit.slots, projects, strict=True)}
        for record in unit.cell(self._profile, "", self._width):
            own: dict[str, Any] = {
                each.name: names[value] for each in fields(record) if each.name != "name"
                and isinstance(value := getattr(record, each.name), str)}
            if self._left:
                names[record.name] = self._left[-1].name
            self._expect(replace(record, **own))
        return {value: names[f".{name}"] for value, name in unit.values.items()}


def _difference(found: Record, wanted: Record) -> str:
    """Describe how a record differs from the expected one."""
    said = f"{type(found).__name__} {found.name}"
    if type(found) is not type(wanted):
        return f"{said} stands where there should be one of kind {type(wanted).__name__}"
    name = next(each.name for each in fields(found) if each.name != "name"
                and getattr(found, each.name) != getattr(wanted, each.name))
    return f"{said} has {name} {getattr(found, name)}, not {getattr(wanted, name)}"


def formats_of(records: Sequence[Record], name: str) -> NumericProfile:
    """The formats of records as the profile ``name``, from the first of each kind; :func:`plan`
    checks whether all have them. ValueError if there is no record of a kind."""
    products = [each for each in records if isinstance(each, Multiply)]
    states = {each.name for each in records if isinstance(each, Recur)}
    silus = {each.name for each in products}

    def first(kind: type[Any], among: Sequence[Record] = records) -> Any:
        for each in among:
            if isinstance(each, kind):
                return each
        raise ValueError(f"there is no {kind.__name__} of the kind that stages have")

    embedding, norm, sigmoid, state = map(first, (Embedding, Norm, Sigmoid, Recur))
    head = first(Project, records[::-1])
    output = first(Multiply, [each for each in products if each.y in states])
    product = first(Multiply, [each for each in products if each.x in silus])
    formats: list[FixedPoint] = [
        each.output for each in (embedding, state, output, product, head)]
    x, h, o, p, logit = formats
    return NumericProfile(
        name, x, sigmoid.z, h, o, p, logit, norm.reciprocal_bits, norm.root_frac, norm.scale_frac,
        head.mantissa_bits, norm.scale_frac + head.mantissa_bits - head.combine_shift,
        sigmoid.frac, 1 << (sigmoid.z.bits - sigmoid.step_bits))


def shape_of(stages: Sequence[StagePlan]) -> ModelConfig:
    """The shape of a language model; ValueError if its layers differ or have other names."""
    layers = sum(each.kind is StageKind.MLGRU for each in stages)
    inner = max((each.rows for each in stages if each.kind is StageKind.GLU), default=0)
    config = ModelConfig(stages[0].columns, layers, inner, stages[-1].rows)
    shapes = {name: (each.rows, each.columns) for each in stages for name in each.matrices}
    if shapes != config.projections():
        raise ValueError("its layers are not those of a language model")
    return config
