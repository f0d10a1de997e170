"""A line on standard error from before, or after, anything else is loaded."""

from __future__ import annotations

import sys

__all__ = ["note"]


def note(text: str) -> None:
    """Print a line to standard error; nowhere if that is closed.

    ``print`` takes standard output in its place, where results are.
    """
    if sys.stderr is not None:
        print(text, file=sys.stderr)
