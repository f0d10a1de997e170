"""How far a run has come: the fraction of its budget that the learning rate follows."""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections import deque
from typing import Any

from sterna.model.checks import check_whole, real_number

__all__ = ["Budget", "StepBudget", "TimeBudget"]

# The first steps only measure the speed: at most 12, and no more than 3 if they take this part of
# the time. Of three a median is one that was not held up.
_FEWEST_STEPS, _TRIAL_STEPS, _TRIAL_PART = 3, 12, 0.05
# Steps whose mean is the speed. One counts for at most so many times their median: a stall tells
# nothing of the steps to come.
_RECENT_STEPS, _LONGEST = 64, 4.0
# After each step at most these parts of the steps that remain are taken off or added: going on more
# slowly than planned spoils nothing.
_FASTER, _SLOWER = 0.05, 0.25
_HASTE = 1.5    # a run that was held up goes through the rest at most this much faster


class Budget(ABC):
    """What the loop asks before each step, and tells after it."""

    fraction: float
    """The used part of the schedule, from 0 to 1."""

    @property
    def spent(self) -> bool:
        """Whether the schedule is at its end."""
        return self.fraction >= 1.0

    @abstractmethod
    def took(self, seconds: float) -> None:
        """A step was done, in this time."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""


class StepBudget(Budget):
    """A number of steps, of which some may be done; 0 for the beginning of a run alone."""

    def __init__(self, steps: int, done: int = 0) -> None:
        check_whole("steps", steps, 0)
        self._steps, self._done = steps, done - 1
        self.took(0.0)

    def took(self, seconds: float) -> None:
        self._done += 1
        self.fraction = self._done / self._steps if self._done < self._steps else 1.0

    def to_json(self) -> dict[str, Any]:
        return {"steps": self._steps}


class TimeBudget(Budget):
    """A training time, made into a number of steps by the speed that is measured.

    The first steps are a trial, in which the fraction stands. Then it goes to 1 in equal strides,
    corrected a little after each step: a stall never makes the schedule jump, and a run that was
    held up for long ends late, but with the end of its decay. A resumed run has used
    ``used_seconds`` and continues ``plan`` (:meth:`to_json`) if the time is the same; a longer one
    begins with a trial, at the fraction that is used.
    """

    def __init__(self, seconds: float, used_seconds: float = 0.0,
                 plan: dict[str, Any] | None = None) -> None:
        if not 0.0 < real_number("seconds", seconds) < math.inf:
            raise ValueError(f"seconds must be above 0, got {seconds}")
        if not 0.0 <= real_number("used_seconds", used_seconds) < math.inf:
            raise ValueError(f"used_seconds must be at least 0, got {used_seconds}")
        self.seconds, self._used = float(seconds), float(used_seconds)
        self.fraction = min(1.0, self._used / self.seconds)
        self._remaining: float | None = None
        if plan is not None and plan.get("seconds") == self.seconds:
            self.fraction, self._remaining = plan["fraction"], plan["remaining"]
        self._recent: deque[float] = deque(maxlen=_RECENT_STEPS)

    def took(self, seconds: float) -> None:
        """Go one stride on, and correct the plan."""
        self._used += seconds
        self._recent.append(seconds)
        measured = len(self._recent) >= _FEWEST_STEPS
        if self._remaining is None:
            trial = len(self._recent) * statistics.median(self._recent)
            if len(self._recent) == _TRIAL_STEPS or (
                    measured and trial >= _TRIAL_PART * self.seconds):
                self._remaining = max(1.0, self._steps_left())
            return
        self.fraction += (1.0 - self.fraction) / self._remaining
        self._remaining -= 1.0
        if self._remaining < 0.5:
            self.fraction = 1.0
        elif measured:
            low, high = (1.0 - _FASTER) * self._remaining, (1.0 + _SLOWER) * self._remaining
            self._remaining = min(max(self._steps_left(), low), high)

    def to_json(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "fraction": self.fraction, "remaining": self._remaining}

    def _steps_left(self) -> float:
        """Steps for the rest of the schedule, at the speed of late: as many as the rest of the
        time is for, or, after a stall, as hurrying allows."""
        most = _LONGEST * statistics.median(self._recent)
        step = statistics.fmean(min(each, most) for each in self._recent)
        on_time = self.seconds - self._used
        in_haste = (1.0 - self.fraction) * self.seconds / _HASTE
        return max(on_time, in_haste) / max(step, 1e-9)
