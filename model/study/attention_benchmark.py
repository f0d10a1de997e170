"""Time softmax attention, linear attention and the MLGRU on sequences of growing length.

The experiment of the works on linear attention: one layer, random inputs, and how often faster it
is than softmax attention, which depends on which softmax attention: both are timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from sterna.model.study.attention_contestants import Call, contestant, contestants_of
from sterna.model.study.attention_result import AttentionResult, Cell, Settings
from sterna.model.study.kept_memory import memory_kept, return_memory
from sterna.model.study.machine import describe_machine
from sterna.model.study.peak_memory import extrapolated, memory_at_hand, peak_bytes

__all__ = ["LEAST_RUNS", "bench_attention", "clock_for", "interleaved"]

LEAST_RUNS = 3
"""Runs of a contestant however long they take."""

_PROBED = (128, 256)
"""Lengths at which memory is counted."""

_MOST_PROBED = 32
"""Sequences with which it is counted at most: a count must fit itself."""

_SHARE = 0.9
"""How much of the free memory may be taken."""


def bench_attention(
    settings: Settings, *, note: Callable[[str], None] = lambda text: None,
    done: Callable[[AttentionResult], None] = lambda result: None,
) -> AttentionResult:
    """Time every contestant at every length.

    Parameters
    ----------
    settings
        What to time.
    note
        Called with what is at work, and with every decision on the way.
    done
        Called with all results so far after each length, so that an interruption loses one.
    """
    (clock_name, clock), needs = clock_for(settings.device), _Needs(settings)
    with memory_kept() as kept:
        result = AttentionResult(settings, describe_machine(settings.device) | {
            "clock": clock_name, "memory_kept": kept})
        for length in settings.lengths:
            result.cells += _cells(settings, needs, length, clock, note)
            done(result)
    return result


def _cells(
    settings: Settings, needs: _Needs, length: int, clock: Callable[[], float],
    note: Callable[[str], None],
) -> list[Cell]:
    """Every contestant at a length."""
    names = contestants_of(settings.part)
    return_memory()
    limit = _limit(settings)
    batch = _batch(settings, needs, length, limit)
    if batch < settings.batch:
        note(f"N {length:,}: batch {batch} for all, as not every contestant fits in memory with "
             f"{settings.batch}")
    calls = {name: _contestant(settings, name, length, batch) for name in names
             if needs.fits(name, length, batch, limit)}
    note(f"N {length:,}, batch {batch}: {len(calls)} contestants in turn")
    taken = interleaved(calls, settings.runs, settings.seconds, clock)
    return [Cell(name, length, batch, needs(name, length, batch), limit,
                 tuple(taken.get(name, ()))) for name in names]


def _contestant(settings: Settings, name: str, length: int, batch: int) -> Call:
    return contestant(
        name, settings.part, (length, batch, settings.d), heads=settings.heads,
        backward=settings.backward, device=settings.device, seed=settings.seed)


def interleaved(
    calls: Mapping[str, Call], runs: int, seconds: float, clock: Callable[[], float],
) -> dict[str, list[float]]:
    """Seconds of every call, one of each in turn, so that noise hits all alike.

    Each is called once before. One that has taken ``seconds`` and :data:`LEAST_RUNS` runs (or
    ``runs``, if that is fewer) sits out the rest.
    """
    for call in calls.values():
        call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(runs):
        names = list(calls)
        first = turn % max(1, len(names))       # who follows whom shall not matter
        for name in names[first:] + names[:first]:
            if turn >= LEAST_RUNS and sum(taken[name]) > seconds:
                continue
            start = clock()
            calls[name]()
            taken[name].append(clock() - start)
    return taken


def clock_for(device: str) -> tuple[str, Callable[[], float]]:
    """What to time with on a device: its name, and a function that tells seconds.

    A single thread is timed by the processor, as others may have it in between.
    """
    if torch.device(device).type == "cuda":
        def after_all() -> float:
            torch.cuda.synchronize(device)
            return time.perf_counter()
        return "wall, after synchronising", after_all
    if torch.get_num_threads() == 1:
        return "processor", time.process_time
    return "wall", time.perf_counter


class _Needs:
    """Bytes that a contestant needs: counted at short lengths once, then extrapolated."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._batch = settings, min(settings.batch, _MOST_PROBED)
        self._probes: dict[str, tuple[int, int]] = {}

    def __call__(self, name: str, length: int, batch: int) -> int:
        if name not in self._probes:
            self._probes[name] = (self._probe(name, _PROBED[0]), self._probe(name, _PROBED[1]))
        found = extrapolated(_PROBED, self._probes[name], length)
        return found * batch // self._batch

    def _probe(self, name: str, length: int) -> int:
        return peak_bytes(lambda: _contestant(self._settings, name, length, self._batch)())

    def fits(self, name: str, length: int, batch: int, limit: int | None) -> bool:
        """Whether a contestant fits in so many bytes, beside the inputs of the others."""
        if limit is None:
            return True
        settings = self._settings
        inputs = 3 * 4 * length * batch * settings.d * len(contestants_of(settings.part))
        return self(name, length, batch) + inputs <= limit


def _limit(settings: Settings) -> int | None:
    """Bytes that a contestant may take, None if nobody knows how many there are."""
    if settings.memory_gb is not None:
        return round(settings.memory_gb * 1e9)
    free = memory_at_hand(settings.device)
    return None if free is None else round(_SHARE * free)


def _batch(settings: Settings, needs: _Needs, length: int, limit: int | None) -> int:
    """The batch of a length: that of the settings, or with ``fit`` the first half of it at which
    all contestants fit."""
    batch = settings.batch
    while settings.fit and batch > 1 and not all(
            needs.fits(name, length, batch, limit) for name in contestants_of(settings.part)):
        batch //= 2
    return batch
