"""Rows of the array made of ECP5 carry cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Instance, Module, Signal, Value, ValueLike, signed

from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.units.mac.array_row import Accumulator, ArrayRow
from sterna.hw.units.mac.array_style import CHAIN_COLUMNS

__all__ = ["ADD", "ADD_NOT_B", "CHOOSE", "SELECT", "CarryChains", "Ecp5ChainRow", "Half"]


def half_init(propagate: Callable[[int, int, int, int], int]) -> int:
    """Return the LUT contents that give half a CCU2C the function ``propagate(a, b, c, d)``.

    A half outputs ``propagate ^ carry in``. Its carry out is the carry in if ``propagate``
    is 1, else ``propagate(a, b, 0, 0)``, which must be ``a`` for a half that adds.
    """
    return sum(
        (propagate(*(index >> bit & 1 for bit in range(4))) & 1) << index for index in range(16))


SELECT = half_init(lambda a, b, c, d: a ^ ((b & c) ^ d))
"""Adds b, nothing (c is 0) or the complement (d is 1) to a."""
CHOOSE = half_init(lambda a, b, c, d: a ^ (b if d else c))
"""Adds b or c to a."""
ADD = half_init(lambda a, b, c, d: a ^ b if c else a)
"""Adds b to a. Input c must be 1."""
ADD_NOT_B = half_init(lambda a, b, c, d: a ^ ~b if c else a)
"""Like ADD with b inverted."""
CARRY_OUT = 0x0000
"""Outputs the carry and ends it: the next half starts from 0."""
NOT_CARRY_OUT = 0xFFFF
"""Outputs the inverse of the carry without ending it."""


@dataclass(frozen=True, slots=True)
class Half:
    """Half a CCU2C: the contents of its LUT and its four inputs."""

    init: int
    a: ValueLike = 0
    b: ValueLike = 0
    c: ValueLike = 0
    d: ValueLike = 0

    def inverted(self) -> Half:
        """Return this half with its sum inverted. Its carry out is then invalid."""
        return Half(self.init ^ 0xFFFF, self.a, self.b, self.c, self.d)


class CarryChains:
    """Builds adders that share carry chains.

    nextpnr adds four LUTs to a chain that starts and ends in ordinary cells. Therefore several
    adders share a chain, separated by a half that also outputs the carry of the preceding adder.
    A chain starts with such a half, too, so its carry input does not matter. A new chain begins at
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

    def add(self, halves: list[Half]) -> Signal:
        """Append an adder, lowest bit first; return the outputs of its halves."""
        if len(self._chain) + len(halves) + 1 > self._most_halves:
            self._close()
        sums = Signal(len(halves), name=f"{self._name}_sum{self._adders}")
        self._adders += 1
        if not self._chain or self._chain[-1][0].init != CARRY_OUT:
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


class Ecp5Accumulator(Accumulator):
    """Adds modulo ``2**sum_bits``, so a sum that fits is right for any start value and partial
    sums."""

    def following(self, m, total):
        bits = len(total)
        wide, start = Signal(signed(bits)), Signal(signed(bits))
        m.d.comb += [wide.eq(self.operand), start.eq(self.minus_count)]
        chains = CarryChains(m, "accumulate", bits + 2)
        following = chains.add([
            Half(CHOOSE, wide[bit], start[bit], total[bit], self.first) for bit in range(bits)])
        chains.finish()
        return following


def add_tree(
    steps: Pipeline, chains: CarryChains, operands: Sequence[Value],
) -> Value:
    """Add two or more operands, neighbours level by level; return a signed sum.

    Operands, with non-increasing widths, and all sums but the last are in offset binary,
    ``n + 2**(w-1)`` in w bits: the carry out is then the top bit, output by the half that ends the
    carry.
    """
    level = list(operands)
    depth = 0
    while len(level) > 1:
        depth += 1
        pairs = [level[i:i + 2] for i in range(0, len(level), 2)]
        level = []
        for index, pair in enumerate(pairs):
            if len(pair) == 1:
                level.append(steps.register(pair[0], f"along{depth}_{index}"))
            else:
                total = chains.add(_halves(*pair, last=len(pairs) == 1))
                level.append(steps.register(total, f"tree{depth}_{index}"))
    return level[0].as_signed()


def _halves(a: Value, b: Value, *, last: bool) -> list[Half]:
    """The adder of two operands in offset binary; the last one's sum is signed."""
    width = len(a)
    halves = []
    for bit in range(width):
        # Extend a narrower b: its top bit is the inverse of its sign.
        extends = len(b) - 1 <= bit < width - 1
        halves.append(Half(
            ADD_NOT_B if extends else ADD, a[bit],
            b[bit] if bit < len(b) - 1 else b[-1], 1))
    halves.append(Half(NOT_CARRY_OUT if last else CARRY_OUT))
    return halves


class Ecp5ChainRow(ArrayRow):
    """One row of style ``ecp5-chain``: chains of four columns, a tree, the accumulator.

    Every adder ends in a register, so each column of a chain is added one step after the previous
    one: the activation of column i arrives ``i % 4`` steps after the weights of its beat. A ``-x``
    is added as its one's complement; the missing +1s are the number of -1 weights of the row,
    the start value of the accumulator.
    """

    accumulator = Ecp5Accumulator

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

        self.accumulate(m, operand)
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
