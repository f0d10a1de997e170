"""Read and check the trace port of a core or network, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from sterna.hw.core.compute.trace import lanes_of
from sterna.hw.core.image.program import Stage, place_stages
from sterna.hw.core.params.geometry import ADDED, Geometry
from sterna.hw.emit.payloads import read_field
from sterna.hw.testbench.job import MonitoredBits, PhaseResult, SimulationError
from sterna.hw.testbench.scoreboard import Checks
from sterna.hw.testbench.stimulus import Activations
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.compare import compare
from sterna.model.quantized.plan import StageKind

__all__ = ["TracedStep", "check_trace", "monitored_lanes"]

_RESULTS: Mapping[StageKind, str] = MappingProxyType({
    StageKind.MLGRU: "z", StageKind.GLU: "z", StageKind.RESIDUAL: "full", StageKind.LAST: "full",
    StageKind.HEAD: "logits"})
"""Field of the lane of results with those of a stage; the others are vectors of the stream."""

_STREAM = frozenset(ADDED) - {StageKind.LAST}
"""Stages with a vector traced as one of the residual stream."""


@dataclass(frozen=True, slots=True)
class TracedStep:
    """A step of a sequence: its tensors by both oracles, its index in them, and whether its
    results are output."""

    tensors: Activations
    index: int
    leaves: bool = True


def monitored_lanes(params: Geometry) -> list[MonitoredBits]:
    """The lanes of the trace port, if any."""
    return [MonitoredBits(lane.name, "taps", lane.low, lane.width)
            for lane in lanes_of(params)] if params.trace else []


def check_trace(
    model: QuantizedModel, params: Geometry, result: PhaseResult, sequence: int,
    steps: Sequence[TracedStep],
) -> Checks:
    """Compare every traced tensor of a sequence, if there is a trace port, in the order of
    computation, so that the first difference is the cause."""
    if not params.trace:
        return Checks()
    words = {}
    for lane in lanes_of(params):
        seen = result.seen[lane.name]
        owners = read_field(seen, lane.fields["sequence"]).reshape(-1)
        words[lane.name] = [word for word, owner in zip(seen, owners, strict=True)
                            if owner == sequence]
    checks = []
    for place, name, values in TraceReader(model, params, words, sequence).tensors(
            [each.leaves for each in steps]):
        step = steps[place]
        checks.append(Checks(*(
            compare(name, oracle[name][step.index].reshape(1, -1), values.reshape(1, -1),
                    first_token=step.index)
            for oracle in (step.tensors.reference, step.tensors.onnx))))
    return sum(checks, Checks())


class TraceReader:
    """Reads the tensors of one sequence from its lanes of the trace port.

    ``words`` has, by lane name, the words valid for this sequence, in order.
    """

    def __init__(
        self, model: QuantizedModel, params: Geometry, words: Mapping[str, Sequence[int]],
        sequence: int,
    ) -> None:
        self._params, self._words = params, words
        self._first, self._last = model.records[0].name, model.entry.result
        self._stages = place_stages(model.stages, params)
        self._x = f"x{sequence // params.batch}"
        self._fields = {lane.name: lane.fields for lane in lanes_of(params)}
        self._read = dict.fromkeys(self._fields, 0)

    def tensors(self, leaves: Sequence[bool]) -> Iterator[tuple[int, str, np.ndarray]]:
        """Yield every tensor: its step in the sequence, its tap name and its flat values, except
        sums on the port of results.

        ``leaves`` says for each step whether its results are output, so that the last stage ran.
        """
        first = self._stages[0]
        for step, last in enumerate(leaves):
            yield step, self._first, self._x_of(first.chunks)[:first.plan.columns]
            for stage in self._stages[:None if last else -1]:
                for tensor, values in self._stage(stage):
                    yield step, tensor, values
        for name, read in self._read.items():
            left = len(self._words[name]) - read
            if left:
                raise SimulationError(f"lane {name} of the trace showed {left} words too many")

    def _take(self, lane: str, count: int, *fields: str) -> dict[str, np.ndarray]:
        """Read fields of the next words of a lane, each ``[count, elements]``."""
        first = self._read[lane]
        words = self._words[lane][first:first + count]
        if len(words) < count:
            raise SimulationError(
                f"lane {lane} of the trace showed {len(self._words[lane])} words, "
                f"too few for the steps that ran")
        self._read[lane] = first + count
        return {name: read_field(words, self._fields[lane][name]) for name in fields}

    def _x_of(self, chunks: int) -> np.ndarray:
        """The next vector of the residual stream."""
        params = self._params
        words = chunks * params.quant_lanes // params.post_lanes
        return self._take(self._x, words, "y")["y"].reshape(-1)

    def _stage(self, stage: Stage) -> Iterator[tuple[str, np.ndarray]]:
        params, plan = self._params, stage.plan
        q = self._take("q", stage.chunks, "q")["q"]
        yield f"{plan.norm}.q", q.reshape(-1)[:plan.columns]
        for lane, parts in (("maximum", ("m", "r")), ("root", ("s", "n")), ("scale", ("v",))):
            values = self._take(lane, 1, *parts)
            for part, value in values.items():
                if part != "r" or values["m"].any():
                    yield f"{plan.norm}.{part}", value.reshape(-1)
        scales = self._take("a", 3, "scale")["scale"]
        count = stage.headers * params.row_beats
        sums = self._take("acc", count, "acc")["acc"]
        fields = [name for name in self._fields["z"] if name not in ("valid", "sequence")]
        results = self._take("z", count, *fields)
        for slot, name in enumerate(plan.matrices):
            def own(
                values: np.ndarray, slot: int = slot, slots: int = len(plan.matrices),
            ) -> np.ndarray:
                grouped = values.reshape(stage.groups, slots, params.rows)
                return grouped[:, slot].reshape(-1)[:stage.rows]

            yield f"{name}.a", scales[slot]
            yield f"{name}.acc", own(sums)
            if field := _RESULTS.get(stage.kind):
                yield f"{name}.z", own(results[field])
        if stage.kind is StageKind.HEAD:
            yield self._last, results["logits"].reshape(-1)[:stage.rows]
        elif stage.kind in _STREAM:
            (_, name), = plan.values
            yield name, self._x_of(
                stage.groups * params.rows // params.quant_lanes)[:stage.rows]
        elif stage.kind is not StageKind.LAST:
            names = dict(plan.values)
            words = self._take(stage.kind.name.lower(),
                               stage.groups * params.rows // params.cell_lanes, *names)
            for part, name in names.items():
                yield name, words[part].reshape(-1)[:stage.rows]
