"""Names in emitted Verilog that every tool and every reader takes as they are."""

from __future__ import annotations

import re

from sterna.hw.emit.keywords import KEYWORDS

__all__ = ["Names", "plain"]

_INDEX = re.compile(r"\$\d+")
_ODD = re.compile(r"\W+", re.ASCII)


def plain(name: str) -> str:
    """Return a name without what would have to be escaped: ``acts[3]`` becomes ``acts_3``.

    Amaranth tells apart what has the same name by ``$`` and a number; these go as well, so that
    the names of two signals may become one.

    >>> plain("beats__payload$12.acts[3]"), plain("table")
    ('beats__payload_acts_3', 'table_')
    """
    name = _ODD.sub("_", _INDEX.sub("", name).replace("]", "").lstrip("$")) or "unnamed"
    if name[0].isdigit():
        name = f"n{name}"
    return f"{name}_" if name in KEYWORDS else name


class Names:
    """The names of one scope, of which no two are the same.

    >>> names = Names({"sum"})
    >>> names.new("sum"), names.new("sum"), names.new("carry")
    ('sum_2', 'sum_3', 'carry')
    """

    def __init__(self, taken: set[str]) -> None:
        self._taken = set(taken)
        self._last: dict[str, int] = {}

    def new(self, name: str) -> str:
        """Take a name, with a number if it is taken already, and return it."""
        found = name
        number = self._last.get(name, 1)
        while found in self._taken:
            number += 1
            found = f"{name}_{number}"
        self._last[name] = number
        self._taken.add(found)
        return found
