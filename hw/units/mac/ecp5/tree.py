"""A tree of adders in ECP5 carry cells, a register after each."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Value, ValueLike

from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.units.mac.ecp5.ccu2c import (
    ADD,
    ADD_NOT_B,
    CARRY_OUT,
    NOT_CARRY_OUT,
    CarryChains,
    Half,
)

__all__ = ["add_tree"]


def add_tree(
    steps: Pipeline, chains: CarryChains, operands: Sequence[Value],
    signs: Sequence[ValueLike] | None = None,
) -> Value:
    """Add operands, neighbours level by level; return a signed sum.

    The operands are in offset binary, ``n + 2**(w-1)`` in w bits, and so are all sums but
    the last: the carry out is then the top bit, and shown by the half that ends the carry.
    A complement of offset binary is the offset binary of the complement.

    Parameters
    ----------
    steps, chains
        Where registers and adders go.
    operands
        What to add; at least two. None is wider than those before it.
    signs
        Whether the complement of an operand, and of all that is added to it before it is
        added to those before it, is added. With the operands; that of the first is not read.
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
