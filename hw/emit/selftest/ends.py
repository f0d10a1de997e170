"""A bench in cocotb: drivers offer words to streams, sinks take them; :func:`exchange` runs both.

``drive`` comes before a rising edge, ``sample`` after it. After an edge, reads give the
values from just before it and writes take effect just after it, in Verilator and Icarus
alike, so a word moved exactly if valid and ready both read as 1. A port is written only
when its value changes: that is what a simulated cycle costs most.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Pause", "StreamDriver", "StreamSink", "exchange", "nothing_more", "reset",
           "visible_ports"]


@dataclass(frozen=True, slots=True)
class Pause:
    """How a driver or sink pauses: ``cycles`` long, with ``chance`` whenever it could move."""

    chance: float
    cycles: int = 1


class _Pauses:
    """Decides, cycle by cycle, whether a driver or a sink pauses."""

    def __init__(self, pause: Pause | None, rng: random.Random) -> None:
        self._pause, self._rng, self._left = pause, rng, 0

    def now(self) -> bool:
        if self._left:
            self._left -= 1
            return True
        if self._pause is None or self._rng.random() >= self._pause.chance:
            return False
        self._left = self._pause.cycles - 1
        return True


class _Level:
    """A port of one bit that is written only when it changes; low at first."""

    def __init__(self, port: Any) -> None:
        self._port, self._value = port, False

    def set(self, value: bool) -> None:
        if value != self._value:
            self._port.value = int(value)
            self._value = value


class StreamDriver:
    """Offers the words of one input stream; once offered, a word stays until it is taken."""

    def __init__(
        self, dut: Any, name: str, words: list[int], pause: Pause | None, rng: random.Random,
    ) -> None:
        self.name, self.words, self.sent = name, words, 0
        self._payload, self._ready = (
            getattr(dut, f"{name}__{part}") for part in ("payload", "ready"))
        self._valid = _Level(getattr(dut, f"{name}__valid"))
        self._pauses = _Pauses(pause, rng)
        self._offering = False

    @property
    def done(self) -> bool:
        """Whether every word was taken."""
        return self.sent == len(self.words)

    def drive(self) -> None:
        """Offer the next word, or pause."""
        if not self._offering and not self.done and not self._pauses.now():
            self._offering = True
            self._payload.value = self.words[self.sent]
        self._valid.set(self._offering)

    def sample(self) -> bool:
        """Return whether a word was taken."""
        if not self._offering or self._ready.value != 1:
            return False
        self._offering, self.sent = False, self.sent + 1
        return True

    def stop(self) -> None:
        """Offer nothing more."""
        self._valid.set(False)


class StreamSink:
    """Takes the words of one output stream, and sees that a word that waits stays as it is.

    A ``shy`` one waits, for about half of the words, until one is offered before it is ready.
    """

    def __init__(
        self, dut: Any, name: str, pause: Pause | None, rng: random.Random, phase: str, *,
        shy: bool = False,
    ) -> None:
        self.name, self._phase = name, phase
        self.words: list[int] = []
        self.taken_at: list[int] = []
        self._payload, self._valid = (
            getattr(dut, f"{name}__{part}") for part in ("payload", "valid"))
        self._ready = _Level(getattr(dut, f"{name}__ready"))
        self._pauses = _Pauses(pause, rng)
        self._shy, self._waits, self._rng = shy, shy, rng
        self._taking = False
        self._waiting: int | None = None    # what was offered in a cycle when we paused

    def drive(self) -> None:
        """Be ready, or pause."""
        self._taking = not self._pauses.now() and (not self._waits or self.offered())
        self._ready.set(self._taking)

    def sample(self, cycle: int) -> bool:
        """Take a word if there is one; return whether one was taken."""
        if self._valid.value != 1:
            if self._waiting is not None:
                raise AssertionError(
                    f"{self._phase}: word {len(self.words)} of {self.name} was withdrawn "
                    f"before it was taken")
            return False
        try:
            word = int(self._payload.value)
        except ValueError:
            raise AssertionError(
                f"{self._phase}: word {len(self.words)} of {self.name} has unknown bits: "
                f"{self._payload.value}") from None
        if self._waiting not in (None, word):
            raise AssertionError(
                f"{self._phase}: word {len(self.words)} of {self.name} changed while it "
                f"waited to be taken")
        self._waiting = None if self._taking else word
        if self._taking:
            self.words.append(word)
            self.taken_at.append(cycle)
            self._waits = self._shy and self._rng.random() < 0.5
        return self._taking

    def open(self) -> None:
        """Take whatever comes from now on; nothing may."""
        self._ready.set(True)

    def offered(self) -> bool:
        """Return whether there is a word."""
        return bool(self._valid.value == 1)

    def close(self) -> None:
        """Take nothing more."""
        self._ready.set(False)

    def refuse(self, wanted: int) -> None:
        """Raise AssertionError: there are more words than ``wanted``."""
        raise AssertionError(
            f"{self._phase}: more came out of {self.name} than the {wanted} words expected")


async def reset(
    dut: Any, edge: Any, inputs: Iterable[str], outputs: Iterable[str],
    levels: Mapping[str, int], *, cycles: int = 2,
) -> None:
    """Reset a unit, nothing being offered or taken; ``levels`` are its plain input ports.

    ``edge`` is the rising edge of its clock, here and below.
    """
    for name in inputs:
        getattr(dut, f"{name}__valid").value = 0
        getattr(dut, f"{name}__payload").value = 0
    for name in outputs:
        getattr(dut, f"{name}__ready").value = 0
    for name, level in levels.items():
        getattr(dut, name).value = level
    dut.rst.value = 1
    for _ in range(cycles):
        await edge
    dut.rst.value = 0
    await edge


def _ignore(cycle: int) -> None:
    """Look at nothing."""


async def exchange(
    edge: Any, drivers: list[StreamDriver], sinks: list[StreamSink], wanted: Mapping[str, int],
    phase: str, patience: int, *, ends: Callable[[int, bool], bool] = lambda cycle, done: done,
    is_bounded: bool = True, watch: Callable[[int], None] = _ignore,
) -> int:
    """Move words until ``ends(cycle, whether all have passed)``; return the cycles.

    ``watch`` is called with each cycle. Raises AssertionError if ``is_bounded`` and a sink gets
    more words than ``wanted``, TimeoutError if no word moves in ``patience`` cycles. Drivers then
    offer nothing, and sinks are ready.
    """
    both: list[StreamDriver | StreamSink] = [*drivers, *sinks]
    cycle = idle = 0
    while not ends(cycle, all(driver.done for driver in drivers)
                   and all(len(sink.words) >= wanted[sink.name] for sink in sinks)):
        for end in both:
            end.drive()
        await edge
        watch(cycle)
        moved = [driver.sample() for driver in drivers] + [sink.sample(cycle) for sink in sinks]
        if is_bounded:
            for sink in sinks:
                if len(sink.words) > wanted[sink.name]:
                    sink.refuse(wanted[sink.name])
        idle = 0 if any(moved) else idle + 1
        cycle += 1
        if idle > patience:
            passed = ", ".join([
                *(f"{driver.sent} of {len(driver.words)} {driver.name} sent" for driver in drivers),
                *(f"{len(sink.words)} of {wanted[sink.name]} {sink.name} received"
                  for sink in sinks)])
            raise TimeoutError(f"{phase}: no transfer for {patience} cycles with {passed}")
    for driver in drivers:
        driver.stop()
    for sink in sinks:
        sink.open()
    return cycle


async def nothing_more(
    edge: Any, sinks: list[StreamSink], wanted: Mapping[str, int], cycles: range,
    watch: Callable[[int], None] = _ignore,
) -> None:
    """Raise AssertionError if anything comes out in these cycles after an exchange."""
    for cycle in cycles:
        await edge
        watch(cycle)
        for sink in sinks:
            if sink.offered():
                sink.refuse(wanted[sink.name])


def visible_ports(module: str, ports: Iterable[str]) -> str:
    """A file that makes these ports visible in Verilator: every signal being so takes far
    longer."""
    return "`verilator_config\n" + "".join(
        f'public_flat_rw -module "{module}" -var "{port}"\n' for port in ports)
