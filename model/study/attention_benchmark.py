"""Time softmax attention, linear attention and the MLGRU on sequences of growing length.

The experiment of the works on linear attention: one layer, random inputs, and how often faster it
is than softmax attention, which depends on which softmax attention: both are timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.model.checks import check_whole
from sterna.model.mixers.attention import Attention
from sterna.model.mixers.linear import LinearAttention, causal_by_sums, elu_features, mixed_by_sums
from sterna.model.mixers.recurrent import MLGRU
from sterna.model.network.heads import head_count
from sterna.model.network.mixer import TokenMixer
from sterna.model.network.projection import MixerInit
from sterna.model.network.recurrence import mlgru_scan
from sterna.model.study.machine import (
    describe_machine,
    extrapolated,
    memory_at_hand,
    memory_kept,
    peak_bytes,
    return_memory,
)

__all__ = ["CONTESTANTS", "FUSED", "LEAST_RUNS", "MATERIALISED", "PARTS", "AttentionResult",
           "Cell", "Settings", "bench_attention", "clock_for", "contestant", "contestants_of",
           "findings", "interleaved", "materialised", "ratios"]


Call: TypeAlias = Callable[[], object]

MATERIALISED, FUSED = "softmax", "softmax fused"
CONTESTANTS = {
    MATERIALISED: "softmax(Q K^T / sqrt(width)) V, the matrix written to memory",
    FUSED: "the same by torch's scaled_dot_product_attention",
    "softmax causal": "the same, every token sees earlier ones only",
    "linear": "linear attention, features elu + 1",
    "linear causal": "the same, every token sees earlier ones only",
    "mlgru": "gates, recurrence and output gate of the MLGRU, which is causal",
    "mlgru scan": "its recurrence alone",
}
"""Names of the contestants, and what each is."""

PARTS = {
    "core": "what lies between the projections",
    "float": "the whole mixer, with float projections",
    "ternary": "the whole mixer, with ternary projections",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What is timed: :data:`PARTS`, forward or with ``backward`` both ways, on ``batch`` sequences
    of each of the ``lengths`` in tokens, with ``d`` channels and ``heads`` heads.

    A contestant has ``runs`` timed runs at a length, or those that fit in ``seconds`` of its own,
    but three at least. ``memory_gb`` is the most memory to take, in 10^9 bytes, None for 90 % of
    what is free. Where a contestant needs more, ``fit`` halves the batch of all contestants of
    that length until none does; otherwise it is not run there.
    """

    lengths: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096, 6000)
    batch: int = 32
    d: int = 64
    heads: int = 4
    runs: int = 100
    seconds: float = 5.0
    part: str = "core"
    backward: bool = False
    memory_gb: float | None = None
    fit: bool = False
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.lengths or list(self.lengths) != sorted(set(self.lengths)):
            raise ValueError(f"lengths must rise, got {list(self.lengths)}")
        for length in self.lengths:
            check_whole("a length", length, 1, 1 << 20)
        for name, high in (("batch", 65536), ("d", 65536), ("heads", 1024), ("runs", 100_000)):
            check_whole(name, getattr(self, name), 1, high)
        head_count(self.d, self.heads)
        for name in ("seconds", "memory_gb"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, got {value}")
        if self.part not in PARTS:
            raise ValueError(f"part must be one of {', '.join(PARTS)}, got {self.part!r}")
        _check_device(self.device)


def _check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got {device!r}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device}: torch finds no CUDA device")


def materialised(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention as its formula is written: ``[batch, heads, time, width]`` all."""
    return (q * q.shape[-1] ** -0.5 @ k.transpose(-1, -2)).softmax(-1) @ v


class _Materialised(Attention):
    def scores(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return materialised(q, k, v)


def _linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return mixed_by_sums(elu_features(q), elu_features(k), v)


def _linear_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    width = q.shape[-1]
    sums = q.new_zeros(*q.shape[:2], width, width)
    return causal_by_sums(elu_features(q), elu_features(k), v, sums, sums[..., 0])[0]


def _mlgru(f: Tensor, c: Tensor, g: Tensor) -> Tensor:
    return g.sigmoid() * mlgru_scan(f.sigmoid(), F.silu(c), f.new_zeros(f.shape[1:]))


def _mlgru_scan(f: Tensor, c: Tensor) -> Tensor:
    return mlgru_scan(f, c, f.new_zeros(f.shape[1:]))


_CORES: dict[str, Callable[..., Tensor]] = {
    MATERIALISED: materialised,
    FUSED: F.scaled_dot_product_attention,
    "softmax causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "linear": _linear, "linear causal": _linear_causal,
    "mlgru": _mlgru, "mlgru scan": _mlgru_scan,
}


# Without positions, which not all of them have.
_MIXERS: dict[str, Callable[[MixerInit, int], TokenMixer]] = {
    MATERIALISED: lambda init, heads: _Materialised(init, heads=heads, causal=False, rope=False),
    FUSED: lambda init, heads: Attention(init, heads=heads, causal=False, rope=False),
    "softmax causal": lambda init, heads: Attention(init, heads=heads, rope=False),
    "linear": lambda init, heads: LinearAttention(init, heads=heads, causal=False, rope=False),
    "linear causal": lambda init, heads: LinearAttention(init, heads=heads, rope=False),
    "mlgru": lambda init, heads: MLGRU(init),
}


def contestants_of(part: str) -> list[str]:
    """The contestants of a part: the recurrence alone is no mixer, so only the core has it."""
    return [name for name in CONTESTANTS if part == "core" or name in _MIXERS]


def contestant(settings: Settings, name: str, length: int, batch: int) -> Call:
    """A call that mixes random tokens once, in float32; ``settings.backward`` computes gradients
    as well: of the inputs, and of the weights if there are some."""
    generator = torch.Generator().manual_seed(settings.seed)
    d, heads, backward = settings.d, settings.heads, settings.backward

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(settings.device)

    if settings.part == "core":     # inputs as projections would give them
        recurrent = name.startswith("mlgru")
        shape = (length, batch, d) if recurrent else (batch, heads, length, d // heads)
        inputs = [drawn(*shape) for _ in range(3)]
        if name == "mlgru scan":    # of gates and candidates
            inputs = [inputs[0].sigmoid(), inputs[1]]
        wanted = [each.requires_grad_(backward) for each in inputs]

        def form() -> Tensor:
            return _CORES[name](*inputs)
    else:
        init = MixerInit(d, ternary=settings.part == "ternary", generator=generator)
        mixer = _MIXERS[name](init, heads).to(settings.device)
        x = drawn(length, batch, d).requires_grad_(backward)
        state, wanted = mixer.initial_state(x), [x, *mixer.parameters()]

        def form() -> Tensor:
            y: Tensor = mixer(x, state)[0]
            return y

    def both() -> object:
        y = form()
        return torch.autograd.grad(y, wanted, torch.ones_like(y))

    return both if backward else torch.no_grad()(form)


@dataclass(frozen=True, slots=True)
class Cell:
    """A contestant at a length: the most memory that it takes at once, counted on short sequences
    with its inputs, what it may take, and the seconds of every run, none if it needs more."""

    contestant: str
    length: int
    batch: int
    needs_bytes: int
    may_take_bytes: int | None
    seconds: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        """Seconds of a run."""
        return statistics.fmean(self.seconds)

    @property
    def deviation(self) -> float:
        """Standard deviation of the seconds; 0 for one run."""
        return statistics.stdev(self.seconds) if len(self.seconds) > 1 else 0.0

    @property
    def median(self) -> float:
        """Seconds of the run in the middle, which others at work on the machine change least."""
        return statistics.median(self.seconds)

    def as_dict(self) -> dict[str, Any]:
        """Figures for JSON, in milliseconds; ``fits`` says whether it was run."""
        found: dict[str, Any] = asdict(self) | {"fits": bool(self.seconds)}
        del found["seconds"]
        if self.seconds:
            found |= {"runs": len(self.seconds)} | {
                f"{name}_ms": float(f"{1000 * value:.5g}") for name, value in (
                    ("mean", self.mean), ("deviation", self.deviation), ("median", self.median),
                    ("least", min(self.seconds)))}
        return found


@dataclass
class AttentionResult:
    """What was measured so far: cells by length, and in each length in the order of
    :data:`CONTESTANTS`."""

    settings: Settings
    machine: dict[str, Any]
    cells: list[Cell] = field(default_factory=list)

    def at(self, length: int) -> dict[str, Cell]:
        """The cells of a length, by contestant."""
        return {cell.contestant: cell for cell in self.cells if cell.length == length}

    def lengths(self) -> list[int]:
        """Those that were measured."""
        return list(dict.fromkeys(cell.length for cell in self.cells))

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "machine": self.machine, "settings": asdict(self.settings),
            "contestants": {name: CONTESTANTS[name] for name in contestants_of(
                self.settings.part)},
            "cells": [cell.as_dict() for cell in self.cells],
            "times_as_fast": [
                {"length": length} | {
                    base: {name: float(f"{value:.4g}") for name, value in found.items()}
                    for base in (MATERIALISED, FUSED)
                    if (found := ratios(self.at(length), base))}
                for length in self.lengths()]}


def ratios(cells: Mapping[str, Cell], base: str) -> dict[str, float]:
    """How many times as fast as ``base`` each contestant is, by medians; none if it did not
    run."""
    if base not in cells or not cells[base].seconds:
        return {}
    return {name: cells[base].median / cell.median for name, cell in cells.items()
            if cell.seconds}


def findings(result: AttentionResult) -> list[str]:
    """What the figures say of linear attention beside softmax, and of the MLGRU beside both, in
    sentences."""
    found = []
    for length in reversed(result.lengths()):
        to_both = [ratios(result.at(length), base) for base in (MATERIALISED, FUSED)]
        if all(to_both):
            found += [
                f"At N {length:,} {name} is {to_both[0][name]:.3g} times as fast as softmax "
                f"attention that writes its matrix, {to_both[1][name]:.3g} times as fast as the "
                f"fused one." for name in ("linear", "linear causal", "mlgru")]
            break
    for rival in ("softmax fused", "linear", "linear causal"):
        speeds = {length: ratio["mlgru"] for length in result.lengths()
                  if "mlgru" in (ratio := ratios(result.at(length), rival))}
        slower = [length for length, speed in speeds.items() if speed <= 1]
        if slower:
            found.append(f"mlgru is not faster than {rival} at N " + ", ".join(
                f"{length:,} ({speeds[length]:.2g} times as fast)" for length in slower) + ".")
        elif speeds:
            found.append(f"mlgru is faster than {rival} at every N, {min(speeds.values()):.3g} to "
                         f"{max(speeds.values()):.3g} times.")
    return found


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

    ``note`` is called with what is at work and with every decision on the way, ``done`` with all
    results so far after each length, so that an interruption loses one.
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
    """Every contestant at a length, with the batch of the settings, or with ``fit`` the first half
    of it at which all fit."""
    names, batch = contestants_of(settings.part), settings.batch
    return_memory()
    limit = _limit(settings)
    while settings.fit and batch > 1 and not all(
            needs.fits(name, length, batch, limit) for name in names):
        batch //= 2
    if batch < settings.batch:
        note(f"N {length:,}: batch {batch} for all, as not every contestant fits in memory with "
             f"{settings.batch}")
    calls = {name: contestant(settings, name, length, batch) for name in names
             if needs.fits(name, length, batch, limit)}
    note(f"N {length:,}, batch {batch}: {len(calls)} contestants in turn")
    taken = interleaved(calls, settings.runs, settings.seconds, clock)
    return [Cell(name, length, batch, needs(name, length, batch), limit,
                 tuple(taken.get(name, ()))) for name in names]


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
        first = turn % max(1, len(names))       # which one follows which must not matter
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
            first, second = (peak_bytes(partial(self._run, name, at)) for at in _PROBED)
            self._probes[name] = (first, second)
        return extrapolated(_PROBED, self._probes[name], length) * batch // self._batch

    def _run(self, name: str, length: int) -> None:
        contestant(self._settings, name, length, self._batch)()

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
