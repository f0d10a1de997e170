"""The ends of a stream in a bench: a driver offers words to it, a sink takes them.

``drive`` comes before a rising edge, ``sample`` after it. After an edge, reads give the
values from just before it and writes take effect just after it, in Verilator and Icarus
alike, so a word moved exactly if valid and ready both read as 1. A port is written only
when its value changes: that is what a simulated cycle costs most.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

__all__ = ["Pause", "StreamDriver", "StreamSink"]


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
