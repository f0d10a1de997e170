"""What circuits that work digit by digit have in common: their count, and small tables."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Const, Module, Mux, Signal, Value

__all__ = ["count_digits", "look_up"]


def count_digits(m: Module, start: Value, done: Value, latency: int) -> Signal:
    """Count the digits that are due after ``start``, and raise ``done`` when all are there.

    Parameters
    ----------
    m
        Module that takes the counter, in its ``sync`` domain.
    start
        Begin, or begin anew.
    done
        High for one cycle, ``latency`` cycles after the last ``start``.
    latency
        Cycles: the one that loads, in which the first digits may be found, then one a digit.

    Returns
    -------
    Signal
        Digits that are due; 0 while there is nothing to do.
    """
    left = Signal(range(max(latency, 2)))
    m.d.sync += done.eq(start if latency == 1 else (left == 1) & ~start)
    with m.If(start):
        m.d.sync += left.eq(latency - 1)
    with m.Elif(left.any()):
        m.d.sync += left.eq(left - 1)
    return left


def look_up(index: Value, entries: Sequence[int], bits: int) -> Value:
    """Return the entry of ``bits`` bits at an index, which has an entry for each value.

    It is a tree of multiplexers over constants, which no tool takes for a memory.
    """
    table: list[Value] = [Const(entry, bits) for entry in entries]
    for bit in index:
        table = [Mux(bit, odd, even) for even, odd in zip(table[::2], table[1::2], strict=True)]
    return table[0]
