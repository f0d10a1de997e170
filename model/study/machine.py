"""Where a measurement is made: the machine, the memory that it has, keeps and needs."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["describe_machine", "extrapolated", "memory_at_hand", "memory_kept", "peak_bytes",
           "return_memory"]


def describe_machine(device: str = "cpu") -> dict[str, Any]:
    """Processor, cores, memory, threads, versions and date; nothing that names the machine."""
    found: dict[str, Any] = {
        "processor": platform.processor() or platform.machine(), "cores": os.cpu_count(),
        "threads": torch.get_num_threads(), "system": f"{platform.system()} {platform.machine()}"}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                found["processor"] = value.strip()
                break
        found["memory_gb"] = round(
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (OSError, ValueError, AttributeError):
        pass    # not Linux: what Python knows must do
    if torch.device(device).type == "cuda":
        found["device"] = torch.cuda.get_device_name(device)
    return found | {"torch": version("torch"), "sterna": version("sterna"),
                    "date": datetime.now(UTC).date().isoformat()}


_TRIM_THRESHOLD, _MMAP_MAX = -1, -4         # names of mallopt(3)
_MMAP_MAX_DEFAULT, _TRIM_DEFAULT = 65536, 128 * 1024


def _glibc() -> Any:
    """The C library, if it is glibc."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None


@contextmanager
def memory_kept() -> Iterator[bool]:
    """Keep freed memory of tensors on the CPU for the next ones, as torch does on CUDA.

    glibc gives large blocks back at once and maps new ones page by page, which takes longer than
    the arithmetic of a large matrix: 0.4 of 0.6 s of softmax attention over 2,048 tokens. Yields
    whether that could be changed, which it is for the whole process until the block ends.
    """
    library = _glibc()
    if library is None:
        yield False
        return
    kept = bool(library.mallopt(_MMAP_MAX, 0)) and bool(library.mallopt(_TRIM_THRESHOLD, -1))
    try:
        yield kept
    finally:
        library.mallopt(_MMAP_MAX, _MMAP_MAX_DEFAULT)
        library.mallopt(_TRIM_THRESHOLD, _TRIM_DEFAULT)
        return_memory()


def return_memory() -> None:
    """Give free memory that is kept back to the system."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


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
