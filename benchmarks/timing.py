"""Shared parts of the benchmarks: interleaved calls of contestants, so that noise hits all alike;
and the machine and versions of a measurement."""

from __future__ import annotations

import math
import os
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Calls", "Samples", "best_milliseconds", "describe_machine", "describe_versions",
           "flush_caches", "measure", "quartiles", "summarise"]

Calls: TypeAlias = Mapping[str, Callable[[], object]]
Samples: TypeAlias = dict[str, list[float]]

# A shared machine may have a larger last-level cache than it reports.
COLD_MIB = 192
LEAST_ROUNDS = 3
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_big: list[np.ndarray] = []


def flush_caches() -> None:
    """Read more memory than the last-level cache holds."""
    if not _big:
        _big.append(np.ones(max(COLD_MIB, 3 * _last_level_mib()) << 17))
    _big[0].sum()


def _last_level_mib() -> int:
    """Size of the largest cache in MiB, 0 if Linux does not report it."""
    sizes = [path.read_text().strip() for path in _CACHES.glob("index*/size")]
    return max((int(size[:-1]) >> 10 for size in sizes if size.endswith("K")), default=0)


def measure(
    calls: Calls, *, rounds: int, cold: bool = False, seconds: float = math.inf,
    clock: Callable[[], float] = time.process_time,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Samples:
    """Time every call, one of each in turn, ``rounds`` times; seconds by ``clock``, by name.

    If warm, an untimed call precedes each timed one to fill the caches; ``cold`` reads more other
    memory in between than the caches hold. No round begins after ``seconds``, except the first
    three. ``progress(done, wanted)`` is called after each. The default clock is CPU time, not wall
    time, as other processes may use the processor in between.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    taken: Samples = {name: [] for name in calls}
    for call in calls.values():
        call()
    begin = time.perf_counter()
    for done in range(rounds):
        if done >= LEAST_ROUNDS and time.perf_counter() - begin > seconds:
            break
        # Start with another one each round, so that the order does not matter.
        names = list(calls)
        first = done % len(names)
        for name in names[first:] + names[:first]:
            call = calls[name]
            if cold:
                flush_caches()
            else:
                call()
            start = clock()
            call()
            taken[name].append(clock() - start)
        progress(done + 1, rounds)
    return taken


def best_milliseconds(calls: Calls, repeats: int, threads: int) -> dict[str, float]:
    """The fastest of ``repeats`` runs of each.

    One thread is measured in CPU time, which excludes other processes; several in wall time, which
    includes their waiting for each other.
    """
    clock = time.thread_time if threads == 1 else time.perf_counter
    taken = measure(calls, rounds=repeats, clock=clock)
    return {name: 1e3 * min(each) for name, each in taken.items()}


def quartiles(values: list[float]) -> list[float]:
    """Lower quartile, median and upper quartile, five digits of each.

    >>> quartiles([1.0, 2.0, 3.0, 4.0, 5.0])
    [2.0, 3.0, 4.0]
    """
    return [float(f"{q:.5g}") for q in np.quantile(values, (0.25, 0.5, 0.75))]


def summarise(taken: Samples, bases: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Quartiles of the microseconds; and, by base, of the ratios to it in the same round.

    A ratio above 1 is faster than the base. A base that did not run is left out.
    """
    return {
        name: {
            "rounds": len(values), "us": quartiles([1e6 * value for value in values]),
            "speed": {base: quartiles([b / v for b, v in zip(taken[base], values, strict=True)])
                      for base in bases if base in taken}}
        for name, values in taken.items()}


_PACKAGES = ("sterna", "onnxruntime", "onnx", "numpy", "torch")


def describe_machine() -> dict[str, object]:
    """Processor, cores, memory and system; nothing that identifies the machine or its user."""
    found: dict[str, object] = {
        "processor": platform.processor() or platform.machine(), "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}"}
    try:
        told = dict(re.findall(
            r"^(\w[^\t:]*?)\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.M))
        flags = (told.get("flags", "") + " " + told.get("Features", "")).split()
        found |= {
            "processor": told.get("model name", found["processor"]),
            "vector units": [flag for flag in ("avx2", "avx_vnni", "avx512_vnni", "asimddp")
                             if flag in flags],
            "memory GiB": round(
                os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)),
            "caches": [f"L{(each / 'level').read_text().strip()} "
                       f"{(each / 'size').read_text().strip()}"
                       for each in sorted(_CACHES.glob("index*"))
                       if (each / "type").read_text().strip() != "Instruction"]}
    except (OSError, ValueError):
        pass  # Not Linux: use what Python reports.
    return found


def describe_versions(ggml: str | None) -> dict[str, str]:
    """Versions of Python and of every measured package; and ``ggml`` if found."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found if ggml is None else found | {"ggml": ggml}
