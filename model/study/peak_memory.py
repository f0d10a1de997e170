"""How much memory a computation takes, before it is run at full size."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["extrapolated", "memory_at_hand", "peak_bytes"]


class _Peak(TorchDispatchMode):
    """Counts the bytes of all tensors that are alive, those that autograd keeps included."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._live = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, Tensor):
                self._note(each.untyped_storage())
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:      # else a view of it
            self._known.add(key)
            self._live += size
            self.peak = max(self.peak, self._live)
            weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._live -= size


def peak_bytes(run: Callable[[], object]) -> int:
    """Most bytes of tensors alive at once in ``run``: those that it makes, inputs included.

    What an operator allocates for itself and frees before it returns is not seen.
    """
    with _Peak() as counted:
        run()
    return counted.peak


def extrapolated(short: tuple[int, int], peaks: tuple[int, int], length: int) -> int:
    """The peak for ``length`` tokens, from those of two short sequences.

    It is taken to be ``a * length + b * length^2``, b not negative, and rather too large: what is
    there once, whatever the length, is counted for every token.

    >>> extrapolated((10, 20), (120, 440), 100)
    10200
    >>> extrapolated((10, 20), (1010, 2000), 100)
    10100
    """
    (first, second), each = short, [peak / at for peak, at in zip(peaks, short, strict=True)]
    square = max(0.0, (each[1] - each[0]) / (second - first))
    linear = max(value - square * at for value, at in zip(each, short, strict=True))
    return round(linear * length + square * length ** 2)


def memory_at_hand(device: str = "cpu") -> int | None:
    """Bytes that can be allocated on a device now; None if the system does not say."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
        return None
    except OSError:
        names = getattr(os, "sysconf_names", {})
        if not {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(names):
            return None
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
