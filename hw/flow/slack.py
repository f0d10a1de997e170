"""How much time the paths of a routed design have left, from nextpnr's log."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["SlackBin", "SlackHistogram", "slack_histogram"]

_HEAD = "Slack histogram:"
_LEGEND = re.compile(r"\* represents (\d+) endpoint")
_BIN = re.compile(r"\[\s*(-?\d+),\s*(-?\d+)\) \|(\**)(\+?)")


@dataclass(frozen=True, slots=True)
class SlackBin:
    """Endpoints of paths with a slack from ``low_ps`` to ``high_ps``, the latter excluded.

    There are at least ``endpoints``; nextpnr prints marks, and not the rest of a division.
    """

    low_ps: int
    high_ps: int
    endpoints: int


@dataclass(frozen=True, slots=True)
class SlackHistogram:
    """Slack of every endpoint against the clock that was aimed at, in picoseconds.

    ``step`` is how many endpoints a mark of nextpnr's stands for: each bin has fewer than that
    more than it says; none if it is 1.
    """

    step: int
    bins: tuple[SlackBin, ...]

    def as_data(self) -> dict[str, Any]:
        """Plain data, for a cache."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> SlackHistogram:
        """What :meth:`as_data` gave, through JSON."""
        return cls(data["step"], tuple(SlackBin(**each) for each in data["bins"]))


def slack_histogram(log: str) -> SlackHistogram | None:
    """Read the last histogram of a log of nextpnr: the one after routing; None without any."""
    _, found, text = log.rpartition(_HEAD)
    legend = _LEGEND.search(text)
    bins = _BIN.findall(text)
    if not found or legend is None or not bins:
        return None
    step = int(legend[1])
    return SlackHistogram(step, tuple(
        SlackBin(int(low), int(high), step * len(marks)) for low, high, marks, _ in bins))
