"""Functions that can be exchanged for a while: by an exporter, or by a check that looks inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from typing import Generic, ParamSpec, TypeVar

__all__ = ["Replaceable"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Replaceable(Generic[_Parameters, _Result]):
    """Decorator: a function whose place another one can take, inside a ``with``.

    It is for the whole process, not for a thread.

    >>> @Replaceable
    ... def double(x: int) -> int:
    ...     return x + x
    >>> with double.by(lambda x: 2 * x + 1):
    ...     double(4)
    9
    >>> double(4)
    8
    """

    def __init__(self, function: Callable[_Parameters, _Result]) -> None:
        self._current = function
        update_wrapper(self, function)

    def __call__(self, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        return self._current(*args, **kwargs)

    @contextmanager
    def by(self, other: Callable[_Parameters, _Result]) -> Iterator[None]:
        """Inside, ``other`` is called, with the same parameters."""
        before, self._current = self._current, other
        try:
            yield
        finally:
            self._current = before
