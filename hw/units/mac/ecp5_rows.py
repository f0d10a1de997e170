"""Rows of the array made of ECP5 carry cells and LUT RAM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from amaranth.hdl import (
    Cat,
    ClockSignal,
    Const,
    Instance,
    Module,
    Mux,
    Shape,
    ShapeLike,
    Signal,
    Value,
    ValueLike,
    signed,
    unsigned,
)
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.units.mac.array_row import ArrayRow, TableFiller
from sterna.hw.units.mac.array_style import CHAIN_COLUMNS
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.mac.weight_codes import TRIPLES

__all__ = [
    "ADD", "ADD_NOT_B", "CHOOSE", "SELECT", "CarryChains", "Ecp5ChainRow", "Ecp5TableFiller",
    "Ecp5TableRow", "Ecp5Tables", "Half"]


def half_init(propagate: Callable[[int, int, int, int], int]) -> int:
    """Return the LUT contents that give half a CCU2C the function ``propagate(a, b, c, d)``.

    A half puts ``propagate ^ carry in`` out. Its carry out is the carry in if ``propagate``
    is 1, otherwise ``propagate(a, b, 0, 0)``, so a half that adds needs that to be ``a``.
    """
    return sum(
        (propagate(*(index >> bit & 1 for bit in range(4))) & 1) << index for index in range(16))


SELECT = half_init(lambda a, b, c, d: a ^ ((b & c) ^ d))
"""Adds b, nothing (c is 0) or the complement (d is 1) to a."""
CHOOSE = half_init(lambda a, b, c, d: a ^ (b if d else c))
"""Adds b or c to a."""
ADD = half_init(lambda a, b, c, d: a ^ b ^ d if c else a)
"""Adds b, or its complement (d is 1), to a. Input c must be 1."""
ADD_NOT_B = half_init(lambda a, b, c, d: a ^ ~b ^ d if c else a)
"""Like ADD with b inverted."""
CARRY_OUT = 0x0000
"""Shows the carry and ends it: what follows starts from 0."""
NOT_CARRY_OUT = 0xFFFF
"""Shows the inverse of the carry. It does not end it."""
_CARRY_IN = 0x000A
"""Starts a carry that is a, with d at 1."""


@dataclass(frozen=True, slots=True)
class Half:
    """Half a CCU2C: the contents of its LUT and its four inputs."""

    init: int
    a: ValueLike = 0
    b: ValueLike = 0
    c: ValueLike = 0
    d: ValueLike = 0

    def inverted(self) -> Half:
        """Return this half with its sum inverted. Its carry out then means nothing."""
        return Half(self.init ^ 0xFFFF, self.a, self.b, self.c, self.d)


class CarryChains:
    """Builds adders that share carry chains.

    nextpnr adds four LUTs to a chain that starts and ends in ordinary cells. So several adders
    share a chain, and the half that keeps one from the next also shows the carry that leaves the
    first. A chain starts with such a half too, whatever its carry input. A new one begins at
    ``most_halves``: a long chain is hard to place, and timing analysis does not see that no
    carry passes from one adder to the next.
    """

    def __init__(self, m: Module, name: str, most_halves: int = 40) -> None:
        self._m = m
        self._name = name
        self._most_halves = most_halves
        self._adders = 0
        self._chain: list[tuple[Half, Value]] = []
        self._chains: list[list[tuple[Half, Value]]] = []

    def add(self, halves: list[Half], *, carry_in: ValueLike | None = None) -> Signal:
        """Append an adder, lowest bit first; return the outputs of its halves."""
        if len(self._chain) + len(halves) + 1 > self._most_halves:
            self._close()
        sums = Signal(len(halves), name=f"{self._name}_sum{self._adders}")
        self._adders += 1
        if carry_in is not None:
            self._chain.append((Half(_CARRY_IN, a=carry_in, d=1), Signal(name="unused")))
        elif not self._chain or self._chain[-1][0].init != CARRY_OUT:
            self._chain.append((Half(CARRY_OUT), Signal(name="unused")))
        self._chain += zip(halves, sums, strict=True)
        return sums

    def finish(self) -> None:
        """Instantiate the cells."""
        self._close()
        for number, chain in enumerate(self._chains):
            carry: Value = Const(0, 1)
            for index in range(0, len(chain), 2):
                pair = chain[index:index + 2]
                if len(pair) == 1:
                    pair.append((Half(CARRY_OUT), Signal(name="unused")))
                connections: dict = {"i_CIN": carry}
                for side, (half, out) in enumerate(pair):
                    connections |= {
                        f"p_INIT{side}": Const(half.init, 16), f"p_INJECT1_{side}": "NO",
                        f"o_S{side}": out}
                    connections |= {
                        f"i_{pin}{side}": Value.cast(value)[:1] for pin, value in zip(
                            "ABCD", (half.a, half.b, half.c, half.d), strict=True)}
                carry = Signal(name=f"{self._name}{number}_carry{index}")
                self._m.submodules[f"{self._name}{number}_{index // 2}"] = Instance(
                    "CCU2C", **connections, o_COUT=carry)

    def _close(self) -> None:
        if self._chain:
            self._chains.append(self._chain)
        self._chain = []


class Ecp5Accumulator(wiring.Component):
    """The sum of a row, gathered beat by beat; one LUT for each bit.

    It adds modulo ``2**sum_bits``, so the sum is right if it fits, whatever the start value and
    the sums on the way are.
    """

    def __init__(self, sum_bits: int, operand_bits: int, start_shape: ShapeLike) -> None:
        self.sum_bits = sum_bits
        super().__init__({
            "advance": In(1),
            "filled": In(1),
            "first": In(1),
            "start": In(Shape.cast(start_shape)),
            "operand": In(signed(operand_bits)),
            "sum": Out(signed(sum_bits)),
        })

    def elaborate(self, platform):
        m = Module()
        total = Signal(signed(self.sum_bits), reset_less=True)
        wide = Signal(signed(self.sum_bits))
        start = Signal(signed(self.sum_bits))
        m.d.comb += [
            wide.eq(self.operand), start.eq(self.start), self.sum.eq(total)]
        chains = CarryChains(m, "accumulate", self.sum_bits + 2)
        following = chains.add([
            Half(CHOOSE, wide[bit], start[bit], total[bit], self.first)
            for bit in range(self.sum_bits)])
        chains.finish()
        with m.If(self.advance & self.filled):
            m.d.sync += total.eq(following)
        return m


def add_tree(
    steps: Pipeline, chains: CarryChains, operands: Sequence[Value],
    signs: Sequence[ValueLike] | None = None,
) -> Value:
    """Add two or more operands, neighbours level by level; return a signed sum.

    The operands are in offset binary, ``n + 2**(w-1)`` in w bits, none wider than those before
    it, and so are all sums but the last: the carry out is then the top bit, and shown by the
    half that ends the carry. A complement of offset binary is the offset binary of the
    complement. A sign says whether the complement of its operand, and of all that was added to
    it before, is added; that of the first is not read.
    """
    level = [(operand, index) for index, operand in enumerate(operands)]
    signs = list(signs) if signs is not None else [0] * len(operands)
    depth = 0
    while len(level) > 1:
        depth += 1
        pairs = [level[i:i + 2] for i in range(0, len(level), 2)]
        level = []
        for index, pair in enumerate(pairs):
            if len(pair) == 1:
                (value, first), name = pair[0], f"along{depth}_{index}"
            else:
                (a, first), (b, second) = pair
                total = chains.add(_halves(a, b, signs[second], last=len(pairs) == 1))
                value, name = total, f"tree{depth}_{index}"
            level.append((steps.register(value, name), first))
        heads = {first for _, first in level}
        signs = [
            steps.register(sign, f"sign{depth}_{index}")
            if index in heads and index > 0 and isinstance(sign, Value) else 0
            for index, sign in enumerate(signs)]
    return level[0][0].as_signed()


def _halves(a: Value, b: Value, sign: ValueLike, *, last: bool) -> list[Half]:
    """The adder of two operands in offset binary; the last one's sum is signed."""
    width = len(a)
    halves = []
    for bit in range(width):
        # A narrower b is extended: its top bit is the inverse of its sign.
        extends = len(b) - 1 <= bit < width - 1
        halves.append(Half(
            ADD_NOT_B if extends else ADD, a[bit],
            b[bit] if bit < len(b) - 1 else b[-1], 1, sign))
    halves.append(Half(NOT_CARRY_OUT if last else CARRY_OUT))
    return halves


class Ecp5ChainRow(ArrayRow):
    """One row of style ``ecp5-chain``: chains of four columns, a tree, the accumulator.

    Every adder ends in a register, so a column of a chain is added one step after the one before
    it: the activation of column i comes ``i % 4`` steps after the weights of its beat. A ``-x``
    is added as its one's complement; the missing +1s are the number of -1 weights of the row,
    from which the accumulator starts.
    """

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps = Pipeline(m, self.advance)
        chains = CarryChains(m, "carry")

        sums = [
            self._chain(steps, chains, low, min(CHAIN_COLUMNS, params.cols - low))
            for low in range(0, params.cols, CHAIN_COLUMNS)]
        operand = add_tree(steps, chains, sums) if len(sums) > 1 else sums[0].as_signed()
        chains.finish()

        self.accumulate(m, partial(
            Ecp5Accumulator, params.sum_bits, len(operand), params.start_shape), operand)
        return m

    def _chain(self, steps: Pipeline, chains: CarryChains, low: int, columns: int) -> Value:
        """Add ``columns`` columns from ``low`` on; offset binary if there are more chains."""
        params = self.params
        has_offset = params.cols > CHAIN_COLUMNS
        nonzero, negative = self.weights[low].as_value()
        selected = ((self.acts[low] & nonzero.replicate(params.act_bits))
                    ^ negative.replicate(params.act_bits))[:params.act_bits]
        if has_offset and columns == 1:
            selected = Cat(selected[:-1], ~selected[-1])
        value = steps.register(selected, f"selected{low}")
        for step in range(1, columns):
            column = low + step
            nonzero, negative = steps.delay(
                self.weights[column].as_value(), step, f"weight{column}")
            act = Value.cast(self.acts[column])
            halves = [
                Half(SELECT, value[min(bit, len(value) - 1)],
                     act[min(bit, params.act_bits - 1)], nonzero, negative)
                for bit in range(params.operand_bits(step + 1))]
            if has_offset and step == columns - 1:
                halves[-1] = halves[-1].inverted()
            value = steps.register(chains.add(halves), f"chain{column}")
        wait = min(CHAIN_COLUMNS, params.cols) - columns
        return steps.delay(value, wait, f"wait{low}")


_RAM_BITS = 4
"""Bits of a word of a TRELLIS_DPR16X4, which holds 16 of them."""


class Ecp5Tables(wiring.Component):
    """A table of 16 entries for each triple of activations; read at once, written on a clock."""

    def __init__(self, triples: int, entry_bits: int) -> None:
        self.triples = triples
        self.entry_bits = entry_bits
        super().__init__({
            "indices": In(ArrayLayout(unsigned(4), triples)),
            "entries": In(ArrayLayout(unsigned(entry_bits), triples)),
            "fill": In(1),
            "fill_index": In(unsigned(4)),
            "values": Out(ArrayLayout(unsigned(entry_bits), triples)),
        })

    def elaborate(self, platform):
        m = Module()
        for triple in range(self.triples):
            entry, value = Value.cast(self.entries[triple]), Value.cast(self.values[triple])
            for low in range(0, self.entry_bits, _RAM_BITS):
                high = min(low + _RAM_BITS, self.entry_bits)
                read = Signal(_RAM_BITS, name=f"read{triple}_{low}")
                m.submodules[f"ram{triple}_{low}"] = Instance(
                    "TRELLIS_DPR16X4",
                    i_WCK=ClockSignal(), i_WRE=self.fill, i_WAD=self.fill_index,
                    i_DI=Cat(entry[low:high], Const(0, low + _RAM_BITS - high)),
                    i_RAD=self.indices[triple], o_DO=read)
                m.d.comb += value[low:high].eq(read)
        return m


class Ecp5TableRow(ArrayRow):
    """One row of style ``ecp5-table``: tables, a tree of adders, the accumulator.

    The sign of a triple chooses in the adder that takes it as second operand whether it, and
    what was added to it before, is complemented. So it is relative to the sign of the first
    operand (:func:`sterna.hw.units.mac.weight_codes.to_relative`); only the first triple of all
    has gates for its own. The complements lack a number of +1s that depends on the weights only,
    from which the row starts. ``entries`` are in offset binary. Every adder ends in a register.
    """

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps = Pipeline(m, self.advance)
        chains = CarryChains(m, "carry")

        m.submodules.tables = tables = Ecp5Tables(params.triples, params.entry_bits)
        m.d.comb += [
            tables.entries.eq(self.entries),
            tables.fill.eq(self.fill),
            tables.fill_index.eq(self.fill_index)]
        values, signs = [], []
        for index in range(params.triples):
            code = self.codes[index]
            m.d.comb += tables.indices[index].eq(code[:-1])
            value = Value.cast(tables.values[index])
            if params.triples == 1:     # no adder that would give a signed sum
                value = Cat(value[:-1], ~value[-1])
            if index == 0:
                value ^= code[-1].replicate(params.entry_bits)
            values.append(steps.register(value, f"value{index}"))
            signs.append(steps.register(code[-1], f"sign0_{index}") if index else code[-1])
        operand = (add_tree(steps, chains, values, signs) if params.triples > 1
                   else values[0].as_signed())
        chains.finish()

        self.accumulate(m, partial(
            Ecp5Accumulator, params.sum_bits, len(operand), params.start_shape), operand)
        return m


class Ecp5TableFiller(TableFiller):
    """Makes the 14 sums of every three activations a, b, c, whose last one is never negative.

    Two adders for every three: c plus or minus b, then plus or minus a. The +1 that a complement
    lacks enters as the carry. What is added is chosen three, two and one cycles before the entry
    is written: before the first one all is 0, as it should be.
    """

    def __init__(self, params: MacParams) -> None:
        super().__init__(params, range(len(TRIPLES)))

    def add_sums(self, m, filling, following):
        params = self.params

        def trits(which: int, ahead: int) -> list[int]:
            return [triple[which] for triple in (*TRIPLES[ahead:], *[TRIPLES[-1]] * ahead)]

        def control(name: str, values: list[bool]) -> Signal:
            return self.choose(m, following, [int(value) for value in values], name)

        uses_c = control("uses_c", [trit != 0 for trit in trits(2, 3)])
        uses_b = control("uses_b", [trit != 0 for trit in trits(1, 2)])
        minus_b = control("minus_b", [trit < 0 for trit in trits(1, 2)])
        uses_a = control("uses_a", [trit != 0 for trit in trits(0, 1)])
        minus_a = control("minus_a", [trit < 0 for trit in trits(0, 1)])

        # A chain for each three: shorter ones end in a spare half.
        chains = CarryChains(m, "carry", 24)
        zero = -1 << (params.entry_bits - 1)       # offset binary
        for triple in range(params.triples):
            a, b, c = self.triple_of_acts(triple)
            # A register that is its initial value but for one condition needs no gates.
            third = Signal(signed(params.act_bits), name=f"third{triple}", reset_less=True)
            pair = Signal(signed(params.act_bits + 1), name=f"pair{triple}", reset_less=True)
            three = Signal(
                signed(params.entry_bits), name=f"three{triple}", init=zero, reset_less=True)
            pair_sum = chains.add(_select(third, b, uses_b, minus_b), carry_in=minus_b)
            halves = _select(pair, a, uses_a, minus_a)
            halves[-1] = halves[-1].inverted()
            m.d.sync += [
                third.eq(Mux(filling & uses_c, c, 0)),
                pair.eq(Mux(filling, pair_sum, 0)),
                three.eq(Mux(filling, chains.add(halves, carry_in=minus_a), zero)),
            ]
            m.d.comb += self.entries[triple].eq(three)
        chains.finish()


def _select(x: Signal, act: Value, uses: Value, minus: Value) -> list[Half]:
    """Halves that add ``act``, nothing or its complement to x; one bit wider than x."""
    return [
        Half(SELECT, x[min(bit, len(x) - 1)], act[min(bit, len(act) - 1)], uses, minus)
        for bit in range(len(x) + 1)]
