"""Progress of a run: the fraction of its budget, which the learning rate follows."""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections import deque
from typing import Any

from sterna.model.checks import check_whole, real_number

__all__ = ["Budget", "StepBudget", "TimeBudget"]

# The first steps only measure the speed: at most 12, or 3 if they take this part of the time. The
# median of three tolerates one stall.
_FEWEST_STEPS, _TRIAL_STEPS, _TRIAL_PART = 3, 12, 0.05
# Steps averaged for the speed. Each is capped at this multiple of their median: a stall predicts
# nothing.
_RECENT_STEPS, _LONGEST = 64, 4.0
# Most of the remaining steps, as fractions, that one step may remove or add: a longer schedule does
# no harm.
_FASTER, _SLOWER = 0.05, 0.25
_HASTE = 1.5    # after a stall the rest of the schedule runs at most this much faster


class Budget(ABC):
    """Queried by the loop before each step and updated after it."""

    fraction: float
    """Used fraction of the schedule, from 0 to 1."""

    @property
    def spent(self) -> bool:
        """Whether the schedule is at its end."""
        return self.fraction >= 1.0

    @abstractmethod
    def took(self, seconds: float) -> None:
        """Record a step that took this time."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The state to store in a checkpoint."""


class StepBudget(Budget):
    """A number of steps, some of which may be done; 0 only initialises a run."""

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
    """A training time, converted to a number of steps by the measured speed.

    The fraction stays constant during a few trial steps, then goes to 1 in equal strides, corrected
    slightly after each step: a stall never makes the schedule jump, and after a long one the run
    ends late, but completes its decay. A resumed run has used ``used_seconds`` and continues
    ``plan`` (:meth:`to_json`) if the time is the same; a longer one begins with a trial at the
    used fraction.
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
        """Advance one stride and correct the plan."""
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
        """Steps for the rest of the schedule at the recent speed: as many as fit into the remaining
        time, or, after a stall, as ``_HASTE`` allows."""
        most = _LONGEST * statistics.median(self._recent)
        step = statistics.fmean(min(each, most) for each in self._recent)
        on_time = self.seconds - self._used
        in_haste = (1.0 - self.fraction) * self.seconds / _HASTE
        return max(on_time, in_haste) / max(step, 1e-9)
