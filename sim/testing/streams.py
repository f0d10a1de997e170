"""Drivers and sinks for your own cocotb tests: words by field name, random pauses."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge

from sterna.hw.emit.selftest import ends
from sterna.model.checks import whole_number
from sterna.sim.testing.run import Folder
from sterna.sim.testing.words import Values, check, read_words, words_of

__all__ = ["StreamDriver", "StreamSink", "start"]

_PATIENCE = 2000


async def start(dut: Any, *, levels: Mapping[str, int] | None = None, period_ns: int = 10) -> None:
    """Start the clock, set every input to 0 and reset the unit for two cycles.

    Call it first in each test, before creating drivers and sinks.

    Parameters
    ----------
    dut
        The unit, as cocotb gives it.
    levels
        Values of plain input ports from now on: ``{"go": 1}``. The others stay 0.
    period_ns
        Period of the clock.
    """
    ports, levels = Folder.current().ports, levels or {}
    for name in levels:
        _one_of("plain input port", name, ports.levels)
    Clock(dut.clk, period_ns, unit="ns").start()
    await ends.reset(dut, RisingEdge(dut.clk), ports.inputs, ports.outputs,
                     {name: levels.get(name, 0) for name in ports.levels})


class _End:
    """Base class of drivers and sinks."""

    def __init__(
        self, dut: Any, kind: str, stream: str, seed: int, pause: float, patience: int,
    ) -> None:
        ports = Folder.current().ports
        _one_of(f"{kind} stream", stream, ports.inputs if kind == "input" else ports.outputs)
        if not 0 <= pause < 1:
            raise ValueError(f"{stream}: pause must be from 0 to below 1, got {pause}")
        self._stream, self._fields, self._clk = stream, ports.fields[stream], dut.clk
        self._patience = whole_number(f"{stream}: patience", patience, 1)
        self._pause = ends.Pause(pause) if pause else None
        # A separate generator per stream: with a common one, all would pause in the same cycles.
        self._dice = random.Random(f"{stream} {whole_number(f'{stream}: seed', seed, 0)}")

    async def _wait(self, end: int, passed: Callable[[], int], hang: Callable[[], str]) -> None:
        """Wait until ``end`` words have passed; AssertionError if it takes too long without one."""
        waited, before = 0, passed()
        while before < end:
            await RisingEdge(self._clk)
            waited, before = (waited + 1 if passed() == before else 0), passed()
            if waited > self._patience:
                raise AssertionError(f"{self._stream}: {hang()}")


class StreamDriver(_End):
    """Sends to an input stream; once offered, a word stays until the unit takes it.

    Parameters
    ----------
    dut
        The unit, as cocotb gives it.
    stream
        Name of an input stream, as its ports begin: ``acts`` of ``acts__payload``.
    seed, pause
        Of the random pauses: a whole number, and how likely one is in a cycle, from 0 to below 1.
        Streams with the same seed still pause at different times.
    patience
        Cycles that a word may wait to be taken; more is a hang.
    """

    def __init__(
        self, dut: Any, stream: str, *, seed: int = 1, pause: float = 0.0,
        patience: int = _PATIENCE,
    ) -> None:
        super().__init__(dut, "input", stream, seed, pause, patience)
        self._end = ends.StreamDriver(dut, stream, [], self._pause, self._dice)
        cocotb.start_soon(self._drive())

    async def send(self, values: Values | Any) -> None:
        """Send numbers and arrays by field, and wait until the unit has taken them.

        See :func:`sterna.sim.testing.words.words_of` for valid values; ValueError names the field
        of invalid ones. AssertionError if a word is not taken in ``patience`` cycles.
        """
        self._end.words += words_of(self._stream, self._fields, values)
        await self._wait(
            len(self._end.words), lambda: self._end.sent,
            lambda: f"word {self._end.sent} was not taken in {self._patience} cycles")

    async def _drive(self) -> None:
        while True:
            self._end.drive()
            await RisingEdge(self._clk)
            self._end.sample()


class StreamSink(_End):
    """Takes words from an output stream from its creation on and queues them.

    A waiting word must not change until it is taken, or the test fails.
    Parameters are those of :class:`StreamDriver`, of an output stream; ``patience`` is how many
    cycles :meth:`receive` waits for a word.
    """

    def __init__(
        self, dut: Any, stream: str, *, seed: int = 1, pause: float = 0.0,
        patience: int = _PATIENCE,
    ) -> None:
        super().__init__(dut, "output", stream, seed, pause, patience)
        self._received = 0
        self._end = ends.StreamSink(dut, stream, self._pause, self._dice, "test")
        cocotb.start_soon(self._take())

    async def receive(self, words: int = 1) -> Any:
        """Wait for the next words, one or more; return their values.

        The values are by field, int64 ``[words, *dimensions of the field]``; a bare array if the
        payload is one field without a name. AssertionError if no word arrives in ``patience``
        cycles.
        """
        words = whole_number(f"{self._stream}: words", words, 1)
        first, taken = self._received, self._end.words
        await self._wait(
            first + words, lambda: len(taken),
            lambda: f"no word in {self._patience} cycles, after {len(taken) - first} of {words}")
        self._received = first + words
        return read_words(self._fields, taken[first:self._received])

    async def expect(self, name: str, expected: Any, *, field: str = "") -> None:
        """Receive the words of a tensor and compare it.

        Parameters
        ----------
        name
            The tensor, for messages: ``layer0.glu.p``.
        expected
            Its values, integers ``[n]``. Elements of the last word beyond them are padding.
        field
            The field with the tensor; empty for a payload without named fields.

        Raises
        ------
        AssertionError
            If a value differs, naming the first one, or the words do not arrive.
        """
        _one_of(f"field of {self._stream}", field, list(self._fields))
        values = [int(value) for value in expected]
        got = await self.receive(-(-len(values) // self._fields[field].elements))
        row = (got[field] if field else got).reshape(-1)
        check(name, row[:len(values)], values)

    async def _take(self) -> None:
        cycle = 0
        while True:
            self._end.drive()
            await RisingEdge(self._clk)
            self._end.sample(cycle)
            cycle += 1


def _one_of(kind: str, name: str, known: list[str]) -> None:
    if name not in known:
        raise ValueError(f"there is no {kind} {name!r}: there is {', '.join(known) or 'none'}")
