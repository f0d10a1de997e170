"""From the words of the trace port to tensors by tap name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from amaranth.hdl import Shape
from amaranth.lib.data import ArrayLayout, StructLayout

from sterna.hw.core.plan.core_params import CoreParams, Stage, StageKind, program
from sterna.hw.parts.bits import from_ints, signed_elements
from sterna.hw.testbench.job import SimulationError

__all__ = ["Lane", "TracedTensor", "lanes_of", "traced_tensors"]


@dataclass(frozen=True, slots=True)
class Lane:
    """Where a lane of the trace port lies.

    Parameters
    ----------
    name
        Name of the lane; lanes of the residual stream are ``x0`` and ``x1``.
    low, width
        Bits of the port.
    layout
        Its fields.
    """

    name: str
    low: int
    width: int
    layout: StructLayout

    @property
    def sequence_bit(self) -> int | None:
        """Bit of the lane that says which sequence, if it does."""
        field = self.layout["sequence"]
        return field.offset if field.width else None


@dataclass(frozen=True, slots=True)
class TracedTensor:
    """A tensor as the gateware computed it: token of the sequence, tap name, flat values."""

    token: int
    tensor: str
    values: np.ndarray


def lanes_of(layout: StructLayout) -> list[Lane]:
    """Return the lanes of a trace port in the order of their bits."""
    lanes = []
    for name, field in layout:
        shape = field.shape
        if isinstance(shape, ArrayLayout):
            size = shape.elem_shape.size
            lanes += [Lane(f"{name}{index}", field.offset + index * size, size, shape.elem_shape)
                      for index in range(shape.length)]
        else:
            lanes.append(Lane(str(name), field.offset, shape.size, shape))
    return lanes


def traced_tensors(
    params: CoreParams, layout: StructLayout, words: Mapping[str, Sequence[int]], sequence: int,
    predict: Sequence[bool],
) -> Iterator[TracedTensor]:
    """Read the tensors of the tokens of one sequence from what its lanes showed.

    Parameters
    ----------
    params, layout
        Geometry of the core, and the layout of its trace port.
    words
        By name of a lane, the words that were valid for this sequence, in order.
    sequence
        Which sequence; it names the lane of the residual stream.
    predict
        For each token, whether the head ran.

    Raises
    ------
    SimulationError
        If a lane showed fewer or more words than the tokens need.
    """
    lanes = {lane.name: lane for lane in lanes_of(layout)}
    return _Reader(params, lanes, words, f"x{sequence}").tensors(predict)


class _Reader:
    def __init__(
        self, params: CoreParams, lanes: dict[str, Lane], words: Mapping[str, Sequence[int]],
        x_lane: str,
    ) -> None:
        self._params, self._lanes, self._words, self._x = params, lanes, words, x_lane
        self._read = dict.fromkeys(lanes, 0)

    def tensors(self, predict: Sequence[bool]) -> Iterator[TracedTensor]:
        params = self._params
        for token, head in enumerate(predict):
            x = self._take(self._x, params.words(params.config.d), "x")["x"]
            yield TracedTensor(token, "embedding.x", x.reshape(-1)[:params.config.d])
            for stage in program(params)[:None if head else -1]:
                for tensor, values in self._stage(stage):
                    yield TracedTensor(token, tensor, values)
        for name in ("q", "norm", "a", "acc", "z", "mlgru", "glu", self._x):
            left = len(self._words[name]) - self._read[name]
            if left:
                raise SimulationError(f"lane {name} of the trace showed {left} words too many")

    def _take(self, lane_name: str, count: int, *fields: str) -> dict[str, np.ndarray]:
        """Read fields of the next words of a lane, each ``[count, elements]``."""
        lane, first = self._lanes[lane_name], self._read[lane_name]
        words = self._words[lane_name][first:first + count]
        if len(words) < count:
            raise SimulationError(
                f"lane {lane_name} of the trace showed {len(self._words[lane_name])} words, "
                f"too few for the tokens that ran")
        self._read[lane_name] = first + count
        values = {}
        for name in fields:
            field = lane.layout[name]
            shape = field.shape
            element = Shape.cast(shape.elem_shape if isinstance(shape, ArrayLayout) else shape)
            bits = from_ints(words, field.offset, field.width)
            if element.signed:
                values[name] = signed_elements(bits, element.width)
            else:
                powers = 1 << np.arange(element.width, dtype=np.int64)
                values[name] = bits.reshape(count, -1, element.width).astype(np.int64) @ powers
        return values

    def _stage(self, stage: Stage) -> Iterator[tuple[str, np.ndarray]]:
        params = self._params
        chunks = -(-params.words(stage.columns) * params.rows // params.quant_lanes)
        q = self._take("q", chunks, "q")["q"]
        yield f"{stage.norm}.q", q.reshape(-1)[:stage.columns]
        for part, value in self._take("norm", 1, "m", "r", "s", "n", "v").items():
            yield f"{stage.norm}.{part}", value.reshape(-1)
        scales = self._take("a", 3, "a")["a"]
        sums = self._take("acc", stage.headers, "acc")["acc"]
        results = self._take("z", stage.headers, "value", "full")
        for slot, name in enumerate(stage.projections):
            yield f"{name}.a", scales[slot]
            yield f"{name}.acc", sums[slot::stage.slots].reshape(-1)[:stage.rows]
            kind = "full" if stage.kind is StageKind.RESIDUAL else "value"
            yield f"{name}.z", results[kind][slot::stage.slots].reshape(-1)[:stage.rows]
        at = stage.projections[0].rpartition(".")[0]
        if stage.kind is StageKind.MLGRU:
            names = {"f": "f.sigmoid", "g": "g.sigmoid", "c": "c.silu", "h": "h", "o": "o"}
            yield from self._vectors("mlgru", at, names, stage.rows)
        elif stage.kind is StageKind.GLU:
            names = {"silu": "gate.silu", "p": "p"}
            yield from self._vectors("glu", at, names, stage.rows)
        elif stage.kind is StageKind.RESIDUAL:
            yield from self._vectors(self._x, at, {"x": "x"}, stage.rows)
        else:
            yield "logits", results["value"].reshape(-1)[:stage.rows]

    def _vectors(
        self, lane: str, at: str, names: dict[str, str], channels: int,
    ) -> Iterator[tuple[str, np.ndarray]]:
        words = self._take(lane, self._params.words(channels), *names)
        for field, name in names.items():
            yield f"{at}.{name}", words[field].reshape(-1)[:channels]
