"""What surrounds the rows in a proof: free inputs, the definition, the packers' codes."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Sequence

import numpy as np
from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Member

from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.units.mac.array_style import CHAIN_COLUMNS, ArrayStyle
from sterna.hw.units.mac.mac_array import ROWS
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.mac.weight_codes import (
    PAIR_BITS,
    TRIPLE_BITS,
    missing_ones,
    pack_pairs,
    pack_triples,
    to_codes,
    to_relative,
)

__all__ = ["Fault", "accumulate", "beat_inputs", "connect_row", "definition", "encode", "in_order",
           "lacking", "legal_trits"]


class Fault(enum.StrEnum):
    """What is planted to see that a proof notices it."""

    NONE = "none"
    CELL = "one bit of a cell's contents"
    CODE = "one code of the packer"
    WIDTH = "one bit less"


def beat_inputs(params: MacParams) -> dict[str, Member]:
    """Return the free inputs of a proof: one beat in every cycle, of anything."""
    return {
        "trits": In(ArrayLayout(unsigned(2), params.cols)),
        "acts": In(ArrayLayout(signed(params.act_bits), params.cols)),
        "start": In(params.start_shape),
        "first": In(1),
        "filled": In(1),
    }


def legal_trits(m: Module, raw: Sequence[Value]) -> list[Signal]:
    """Return every weight that is not legal as 0, signed; the legal ones as they are."""
    trits = [Signal(signed(2), name=f"trit{column}") for column in range(len(raw))]
    for trit, value in zip(trits, raw, strict=True):
        m.d.comb += trit.eq(Mux(value == 2, 0, value))
    return trits


def encode(m: Module, style: ArrayStyle, trits: Sequence[Signal], fault: Fault) -> Value:
    """Return the weights of a beat as the packer of a style stores them.

    The codes are the packer's: it is asked for each combination. With ``Fault.CODE`` the
    first weights have the code of their negatives where that of (-1, 0, ...) is due.
    """
    size, width, pack = _PACKERS[style]
    codes = []
    for low in range(0, len(trits), size):
        group = trits[low:low + size]
        key = Cat(*group, Const(0, 2 * (size - len(group))))
        code = Signal(width, name=f"{style.replace('-', '_')}_code{low}")
        with m.Switch(key):
            for weights in itertools.product((-1, 0, 1), repeat=size):
                stored = np.array([weights])
                if fault is Fault.CODE and low == 0 and weights == (-1,) + (0,) * (size - 1):
                    stored = -stored
                with m.Case(sum((w & 3) << (2 * place) for place, w in enumerate(weights))):
                    m.d.comb += code.eq(int(pack(stored).item()))
        codes.append(code)
    if style is not ArrayStyle.ECP5_TABLE:
        return Cat(codes)
    # Relative signs: those with which a sign is exclusive-ored are the packer's, too.
    linked = to_relative(np.eye(len(codes), dtype=np.uint8) << (width - 1)) >> (width - 1)
    return Cat(
        Cat(code[:-1], Cat(codes[other][-1] for other in range(len(codes))
                           if linked[other, index]).xor())
        for index, code in enumerate(codes))


def lacking(m: Module, style: ArrayStyle, trits: Sequence[Signal]) -> Value:
    """Return what the complements of a beat lack, as the packer counts it."""
    match style:
        case ArrayStyle.XC7_TABLE:
            return Const(0, 1)
        case ArrayStyle.ECP5_TABLE:
            codes = encode(m, style, trits, Fault.NONE)
            signs = Cat(codes[place] for place in range(TRIPLE_BITS - 1, len(codes), TRIPLE_BITS))
            lacks = Signal(signed(len(signs) + 1), name="lacks")
            with m.Switch(signs):
                for number in range(1 << len(signs)):
                    bits = (number >> np.arange(len(signs))) & 1
                    with m.Case(number):
                        m.d.comb += lacks.eq(int(missing_ones(bits << (TRIPLE_BITS - 1))))
            return lacks
    return sum((trit[1] for trit in trits[1:]), start=trits[0][1])


def definition(params: MacParams, trits: Sequence[Value], acts: Sequence[Value]) -> Value:
    """Return ``w * x`` summed up, less the number of -1 weights; written with ``*``."""
    return in_order(params.style, [
        trit * act - trit[1] for trit, act in zip(trits, acts, strict=True)])


def in_order(style: ArrayStyle, values: Sequence[Value]) -> Value:
    """Return the sum of the values, of columns or of triples, added in the order of a row.

    The order does not change the result, but the solver then has the shortest way.
    """
    match style:
        case ArrayStyle.ECP5_CHAIN:
            return _balanced(_in_groups(values, CHAIN_COLUMNS), 2)
        case ArrayStyle.XC7_PAIR:
            return _balanced(_in_groups(values, 2), 3)
        case ArrayStyle.XC7_TABLE:
            return _balanced(values, 3)
    return _balanced(values, 2)


def _in_groups(values: Sequence[Value], size: int) -> list[Value]:
    """Return the sums of every ``size`` neighbours."""
    return [sum(values[low + 1:low + size], start=values[low])
            for low in range(0, len(values), size)]


def _balanced(values: Sequence[Value], size: int) -> Value:
    """Return the sum by a tree that adds ``size`` neighbours at a time."""
    level = list(values)
    while len(level) > 1:
        level = _in_groups(level, size)
    return level[0]


def connect_row(
    m: Module, name: str, params: MacParams, trits: Sequence[Signal], acts: Sequence[Value],
    beat: dict[str, Value], steps: Pipeline, fault: Fault,
):
    """Add a row that always advances, with its weights and what its accumulator takes.

    ``beat`` has ``first``, ``filled`` and ``start``. The row's sum is that of a beat
    ``row_steps + 1`` steps later. Tables are left to the caller.
    """
    row = ROWS[params.style](params)
    m.submodules[name] = row
    late = params.row_steps
    m.d.comb += [
        row.advance.eq(1),
        Value.cast(getattr(row, params.weight_name)).eq(encode(m, params.style, trits, fault)),
        row.first.eq(steps.delay(beat["first"], late, f"{name}_first")),
        row.filled.eq(steps.delay(beat["filled"], late, f"{name}_filled")),
    ]
    if params.start_name:
        start = Signal(params.start_shape, name=f"{name}_start")
        port = getattr(row, row.start_port)
        m.d.comb += [
            start.eq(beat["start"]), port.eq(steps.delay(start, late, f"{name}_late_start"))]
    if not params.style.has_tables:
        m.d.comb += [
            row.acts[column].eq(steps.delay(
                acts[column], _act_steps(params.style, column), f"{name}_act{column}"))
            for column in range(params.cols)]
    return row


def accumulate(
    m: Module, params: MacParams, added: Value, beat: dict[str, Value], steps: Pipeline,
) -> Signal:
    """Return what the sum of :func:`connect_row` must be: each beat adds ``added`` to it."""
    exact = Signal(signed(params.sum_bits), reset_less=True)
    late_added, first, filled, start = (
        steps.delay(value, params.row_steps, name)
        for name, value in (("added", added), *beat.items()))
    with m.If(filled):
        m.d.sync += exact.eq(Mux(first, start, exact) + late_added)
    return exact


def _act_steps(style: ArrayStyle, column: int) -> int:
    """The array delays the activations of a chain by a step for each column."""
    return column % CHAIN_COLUMNS if style is ArrayStyle.ECP5_CHAIN else 0


_PACKERS: dict[ArrayStyle, tuple[int, int, Callable]] = {
    ArrayStyle.GENERIC: (1, 2, to_codes),
    ArrayStyle.ECP5_CHAIN: (1, 2, to_codes),
    ArrayStyle.XC7_PAIR: (2, PAIR_BITS, pack_pairs),
    ArrayStyle.ECP5_TABLE: (3, TRIPLE_BITS, pack_triples),
    ArrayStyle.XC7_TABLE: (3, TRIPLE_BITS, pack_triples),
}
"""Weights of a code, its bits, and what packs them."""
