"""Adders in the carry cells of the ECP5, with logic of each operand's bit in the same cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from amaranth.hdl import Const, Instance, Module, Signal, Value, ValueLike

__all__ = ["ADD", "ADD_NOT_B", "CARRY_OUT", "CHOOSE", "NOT_CARRY_OUT", "SELECT", "CarryChains",
           "Half", "half_init"]


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

    nextpnr adds four LUTs to a chain that starts and ends in ordinary cells. So several
    adders share a chain, and the half that keeps one from the next also shows the carry
    that leaves the first. A chain starts with such a half too, whatever its carry input.

    Parameters
    ----------
    m
        Module that takes the cells.
    name
        Beginning of their names.
    most_halves
        Length at which a new chain begins. A long chain is hard to place, and timing
        analysis does not see that no carry passes from one adder to the next.
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
