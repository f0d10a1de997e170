"""Finding stop strings in a text while it is written."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["StopStrings"]


class StopStrings:
    """Finds the first of several strings in a text that comes in pieces.

    Each string takes a time that grows with the text and not with the string (the method of
    Knuth, Morris and Pratt, whose table is made only as far as the text has matched).

    Parameters
    ----------
    strings
        What to look for; none of them empty.

    >>> stops = StopStrings(["stop"])
    >>> stops.find("on the st"), stops.open
    (None, 2)
    >>> stops.find("op now")        # it began eight characters before the end
    8
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self._matches = [_Match(string) for string in strings]

    def find(self, text: str) -> int | None:
        """Take the text that comes next.

        Returns how many characters before its end the string begins that begins first; None
        while no string is complete.
        """
        found = [match.find(text) for match in self._matches]
        return max((back for back in found if back is not None), default=None)

    @property
    def open(self) -> int:
        """How many characters at the end of the text so far could begin a string."""
        return max((match.length for match in self._matches), default=0)


class _Match:
    """How much of one string the text so far ends with."""

    def __init__(self, string: str) -> None:
        self._string = string
        self._borders = [0]
        """For each beginning of the string: the longest shorter one that it ends with."""
        self.length = 0

    def find(self, text: str) -> int | None:
        for at, character in enumerate(text, 1):
            self.length = self._extended(self.length, character)
            if self.length == len(self._string):
                return len(text) - at + self.length
            if self.length > len(self._borders):
                self._borders.append(
                    self._extended(self._borders[-1], self._string[len(self._borders)]))
        return None

    def _extended(self, length: int, character: str) -> int:
        """The match after ``character`` of a text that ended with ``length`` of the string."""
        while length and self._string[length] != character:
            length = self._borders[length - 1]
        return length + (self._string[length] == character)
