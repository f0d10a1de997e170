"""A tree of adders of three operands, a register after each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from amaranth.hdl import Module, Value

from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.units.mac.base.steps import tree_steps
from sterna.hw.units.mac.xc7.ternary_adder import TernaryAdder

__all__ = ["PartialSum", "add_tree", ]


@dataclass(frozen=True, slots=True)
class PartialSum:
    """A signed value and the number of columns that it sums up."""

    value: Value
    columns: int


def add_tree(
    m: Module, steps: Pipeline, partials: list[PartialSum], left: int,
    bits: Callable[[int], int],
) -> list[PartialSum]:
    """Add neighbours, level by level, until at most ``left`` partial sums remain.

    Parameters
    ----------
    m
        Module that takes the adders.
    steps
        Pipeline that takes the registers.
    partials
        What to add.
    left
        How many may remain, at least 1.
    bits
        Signed width of a sum of so many columns.
    """
    for depth in range(tree_steps(len(partials), left)):
        groups = [partials[i:i + 3] for i in range(0, len(partials), 3)]
        partials = []
        for index, group in enumerate(groups):
            name = f"tree{depth}_{index}"
            columns = sum(partial.columns for partial in group)
            if len(group) == 1:
                value = group[0].value
            else:
                m.submodules[name] = adder = TernaryAdder(bits(columns))
                m.d.comb += [port.eq(partial.value) for port, partial in zip(
                    (adder.a, adder.b, adder.c), group, strict=False)]
                value = adder.total
            partials.append(PartialSum(steps.register(value, f"{name}_sum"), columns))
    return partials
