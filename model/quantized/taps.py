"""Observe the tensors inside a model while it runs.

Everything that runs a model takes a *tap*: a function called with the name and the value of
every intermediate tensor, in the order of computation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from array_api_compat import to_device

__all__ = ["Tap", "TapRecorder", "ignore", "tap_tokens"]

Array = Any
Tap = Callable[[str, Array], None]
"""Called with the name and the values of each tensor once computed."""


def ignore(name: str, value: Array) -> None:
    """The tap that does nothing."""


def tap_tokens(tap: Tap, values: Mapping[str, Array]) -> None:
    """Call ``tap`` with tensors ``[length, ...]`` token by token, as if computed so."""
    if tap is not ignore:
        for t in range(next(iter(values.values())).shape[0]):
            for name, value in values.items():
                tap(name, value[t])


class TapRecorder:
    """Collects intermediate tensors by name while a model runs.

    Pass it as ``tap=``. ``recorder[name]`` is then a NumPy array ``[steps, batch, ...]``.

    Parameters
    ----------
    names
        Tensors to keep; None keeps all of them.
    """

    def __init__(self, names: Sequence[str] | None = None) -> None:
        self._wanted = None if names is None else frozenset(names)
        self._values: dict[str, list[np.ndarray]] = {}

    def __call__(self, name: str, value: Array) -> None:
        if self._wanted is None or name in self._wanted:
            self._values.setdefault(name, []).append(np.asarray(to_device(value, "cpu")))

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._values:
            raise KeyError(f"no tensor called {name!r} was recorded")
        return np.stack(self._values[name])

    def names(self) -> list[str]:
        """Names recorded, in the order of computation."""
        return list(self._values)
