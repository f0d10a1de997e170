"""A fixed ternary matrix as adders, with common subexpressions shared among its rows."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.hdl import Const, Module, Value, signed
from amaranth.lib import stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.emit.folder import EmittedUnit, UnitDesign, emit_component
from sterna.hw.emit.names import check_name
from sterna.hw.emit.payloads import UnitPorts, pack_words
from sterna.hw.emit.selftest.folder_test import VectorPhase, Vectors
from sterna.hw.layers.emit import sha256_of
from sterna.hw.parts.pipeline import Pipeline, advance_of
from sterna.model.files import check_path
from sterna.model.folder import check_replaceable
from sterna.model.layers.layer import matrix_layer_of
from sterna.model.layers.matrix import Ternary

__all__ = ["AdderParams", "AdderPlan", "Adders", "adders_component", "emit_adders", "plan_adders"]

_ACT_BITS = 8
_VECTORS = 20


@dataclass(frozen=True, slots=True)
class AdderPlan:
    """The adders for the rows of a matrix.

    Values are numbered: first those of the columns, then ``sums``, each ``sign * a + sign * b`` of
    two earlier ones: ``(a, sign, b, sign)``, with the last sign 0 for just -a. ``rows`` are values,
    None for a row of zeros.
    """

    columns: int
    sums: tuple[tuple[int, int, int, int], ...]
    rows: tuple[int | None, ...]

    @property
    def depths(self) -> list[int]:
        """Adder depth of each value."""
        depths = [0] * self.columns
        for a, _, b, _ in self.sums:
            depths.append(max(depths[a], depths[b]) + 1)
        return depths

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Minimum and maximum of each value: no input is in a sum twice."""
        least = -1 << _ACT_BITS - 1
        ranges = [(least, ~least)] * self.columns
        for a, of_a, b, of_b in self.sums:
            ends = [sorted(sign * end for end in ranges[value])
                    for value, sign in ((a, of_a), (b, of_b)) if sign]
            ranges.append((sum(end[0] for end in ends), sum(end[1] for end in ends)))
        return ranges


def plan_adders(weights: np.ndarray) -> AdderPlan:
    """Share sums among the rows of ``weights [rows, columns]`` of -1, 0 and 1.

    Greedy: the pair of values shared by most rows, with equal or with opposite signs, is replaced
    by one value, repeatedly; ties go to the shallowest pair (two-term common subexpressions:
    Hartley, 1996). The remaining terms of a row are added shallowest first.
    """
    columns = weights.shape[1]
    terms = np.array(weights, dtype=np.int32)
    sums: list[tuple[int, int, int, int]] = []
    depths = [0] * columns

    def add(a: int, of_a: int, b: int, of_b: int) -> int:
        sums.append((a, of_a, b, of_b))
        depths.append(max(depths[a], depths[b]) + 1)
        return len(depths) - 1

    # Rows with equal signs of a pair minus rows with opposite ones; and rows with the pair.
    signed_pairs, pairs = terms.T @ terms, abs(terms).T @ abs(terms)
    while True:
        most = np.triu(pairs + abs(signed_pairs), 1) // 2
        best = most.max(initial=0)
        if best < 2:
            break
        places = np.argwhere(most == best)
        level = np.array(depths)
        a, b = map(int, places[np.argmin(level[places].max(axis=1))])
        sign = 1 if signed_pairs[a, b] > 0 else -1
        add(a, 1, b, sign)
        found = terms[:, a] * terms[:, b] == sign
        terms = np.column_stack([terms, np.where(found, terms[:, a], 0)])
        terms[np.ix_(found, [a, b])] = 0
        changed = [a, b, terms.shape[1] - 1]
        signed_pairs, pairs = (np.pad(each, (0, 1)) for each in (signed_pairs, pairs))
        for kept, of in ((signed_pairs, terms), (pairs, abs(terms))):
            kept[changed] = of[:, changed].T @ of
            kept[:, changed] = kept[changed].T

    def total(row: np.ndarray) -> int | None:
        heap = [(depths[value], int(value), int(row[value])) for value in np.flatnonzero(row)]
        heapq.heapify(heap)
        while len(heap) > 1:
            (_, a, of_a), (_, b, of_b) = heapq.heappop(heap), heapq.heappop(heap)
            # Two negative terms become a negative one, all others a positive one.
            both = -1 if of_a == of_b == -1 else 1
            new = add(a, both * of_a, b, both * of_b)
            heapq.heappush(heap, (depths[new], new, both))
        if not heap:
            return None
        _, value, sign = heap[0]
        return value if sign == 1 else add(value, -1, value, 0)

    rows = tuple(total(row) for row in terms)
    return AdderPlan(columns, tuple(sums), rows)


@dataclass(frozen=True, slots=True)
class AdderParams:
    """Sizes of a matrix of adders."""

    rows: int
    columns: int
    adders: int
    latency: int  # cycles from a vector taken to its sums offered
    sum_bits: int

    @property
    def acts_layout(self) -> StructLayout:
        return StructLayout({"q": ArrayLayout(signed(_ACT_BITS), self.columns)})

    @property
    def sums_layout(self) -> StructLayout:
        return StructLayout({"sum": ArrayLayout(signed(self.sum_bits), self.rows)})


class Adders(wiring.Component):
    """A fixed ternary matrix times vectors of 8-bit activations, one per cycle.

    Each adder has an output register. The whole pipeline stalls while a result waits.

    Members
    -------
    acts : ``In(stream.Signature(params.acts_layout))``
        ``q`` of each column.
    sums : ``Out(stream.Signature(params.sums_layout))``
        ``sum`` of each row.
    """

    def __init__(self, plan: AdderPlan) -> None:
        self.plan = plan
        needed = [value for value in plan.rows if value is not None]
        bits = [max(high, ~low).bit_length() + 1 for low, high in plan.ranges]
        self.params = AdderParams(
            len(plan.rows), plan.columns, len(plan.sums),
            max([1, *(plan.depths[value] for value in needed)]),
            max([1, *(bits[value] for value in needed)]))
        self._bits = bits
        super().__init__({
            "acts": In(stream.Signature(self.params.acts_layout)),
            "sums": Out(stream.Signature(self.params.sums_layout))})

    def elaborate(self, platform):
        m = Module()
        plan, latency, depths = self.plan, self.params.latency, self.plan.depths
        advance = advance_of(self.sums)
        steps = Pipeline(m, advance)
        # Each value when computed, and one, two, ... steps later.
        ages: list[list[Value]] = [[each] for each in self.acts.payload.q]

        def at(value: int, depth: int) -> Value:
            age = depth - depths[value]
            while len(ages[value]) <= age:
                ages[value].append(steps.register(
                    ages[value][-1], f"v{value}_{len(ages[value])}"))
            return ages[value][age]

        for value, (a, of_a, b, of_b) in enumerate(plan.sums, plan.columns):
            before = depths[value] - 1
            total = of_a * at(a, before) if not of_b else (
                _signed_sum(at(a, before), of_a, at(b, before), of_b))
            ages.append([steps.register(total[:self._bits[value]].as_signed(), f"v{value}")])

        m.d.comb += [
            self.acts.ready.eq(advance),
            self.sums.valid.eq(steps.flags(self.acts.valid, latency, "valid")[-1]),
            *(out.eq(Const(0) if value is None else at(value, latency))
              for out, value in zip(self.sums.payload.sum, plan.rows, strict=True))]
        return m


def _signed_sum(a: Value, of_a: int, b: Value, of_b: int) -> Value:
    if of_a == of_b:
        return a + b
    return a - b if of_a == 1 else b - a


def adders_component(weights: Ternary) -> Adders:
    """The Amaranth component that :func:`emit_adders` writes, with the same argument and errors."""
    return Adders(plan_adders(_checked(weights)))


def emit_adders(
    weights: Ternary, folder: str | Path, *, name: str = "ternary_adders", axis: bool = False,
) -> EmittedUnit:
    """Write Verilog that multiplies an int8 vector by a fixed, small ternary matrix every cycle.

    Zero weights need no adder, and sums common to several rows are computed once: the matrix is in
    the adders, not in a memory. Stream ``acts`` in: ``q``, all columns; stream ``sums`` out:
    ``sum``, the exact dot products of all rows.

    Parameters
    ----------
    weights
        -1, 0 and 1, ``[rows, columns]``; a ``TernaryMatrix`` without scale and bias.
    folder, name, axis
        As for :func:`~sterna.emit_matrix`.

    Raises
    ------
    ValueError
        If the weights are not ternary, have a scale or bias, or the folder is refused.
    OSError
        If the folder cannot be written.
    """
    check_path("folder", folder)
    check_replaceable(Path(folder))
    check_name(name)
    weight = _checked(weights)
    unit = Adders(plan_adders(weight))
    params = unit.params
    design = UnitDesign(
        unit, name, derived=(), summary=(
            f"The product of a ternary matrix of {params.rows} rows and {params.columns} columns "
            f"with a vector of {_ACT_BITS}-bit activations in every cycle: {params.adders} adders, "
            f"{params.latency} one after the other at most."),
        sections="", extra={"cycles": [{"latency": params.latency, "period": 1.0}]},
        vectors=lambda emitted: _vectors(weight, UnitPorts.of(emitted.manifest)))
    origin: dict[str, Any] = {"matrices": [
        {"rows": params.rows, "columns": params.columns, "sha256": sha256_of(weight)}]}
    return emit_component(origin, design, folder, axis=axis)


def _checked(weights: Ternary) -> np.ndarray:
    return matrix_layer_of(weights, None).weight


def _vectors(weight: np.ndarray, ports: UnitPorts) -> Vectors:
    """Random activations, and those that give the least and largest sums of some rows."""
    rng = np.random.default_rng(0)
    random = rng.integers(-128, 128, (_VECTORS, weight.shape[1]))
    extremes = np.where(weight[:_VECTORS] > 0, 127, -128)
    acts = np.concatenate([random, extremes, ~extremes])
    return Vectors([VectorPhase(
        "random and extreme activations", {"acts": pack_words(ports.fields["acts"], {"q": acts})},
        {"sums": pack_words(ports.fields["sums"], {"sum": acts @ weight.T})})])
