"""The loop of a training run."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from sterna.model.training.budget import Budget
from sterna.model.training.heldout import measure_heldout
from sterna.model.training.record import Record
from sterna.model.training.report.progress import TrainProgress, TrainReporter
from sterna.model.training.run_folder import RunFolder
from sterna.model.training.saving import save_run
from sterna.model.training.state import TrainState
from sterna.model.training.stop import Stop
from sterna.model.training.windows import WindowSampler

__all__ = ["Intervals", "train_steps"]


@dataclass(frozen=True, slots=True)
class Intervals:
    """How often a run does what is no step.

    The held-out text is measured ``heldout_evaluations`` times, the end included, or every
    ``heldout_steps`` steps (if given) and at the end. A checkpoint is written every
    ``checkpoint_seconds``, and (if given) every ``checkpoint_steps``.
    """

    heldout_evaluations: int = 8
    heldout_steps: int | None = None
    checkpoint_seconds: float = 60.0
    checkpoint_steps: int | None = None


def train_steps(
    state: TrainState, sampler: WindowSampler, budget: Budget, heldout: bytes, *,
    folder: RunFolder, intervals: Intervals, record: Record, reporter: TrainReporter,
    stop: Stop,
) -> int | None:
    """Take steps until the budget is spent or a signal came, then write the checkpoint.

    Training time is that of the steps: what is done between them is not counted. Several
    processes go by the same numbers, so that all do the same next. The end of a run is measured
    also if it is resumed there, as it may have been killed before it was measured, or been
    measured on less text.

    Returns
    -------
    The signal, also if another process got it; None if there was none.

    Raises
    ------
    FloatingPointError
        If a loss or a weight is not finite.
    OSError
        If a file cannot be written.
    """
    def keep(*, finished: bool) -> None:
        save_run(state, folder, budget.to_json(), finished=finished)
        record.begin()

    seconds_before, tokens_before = state.seconds, state.tokens
    next_save = time.monotonic() + intervals.checkpoint_seconds
    evaluations = _due(state, budget, intervals)
    _, signal, _ = _agreed(state, 0.0, stop, next_save)
    if budget.spent and state.step:     # resumed at its end, whose last measure may be missing
        missing = state.heldout_bpb is None
        state.heldout_bpb = _measure(state, heldout, budget, reporter)
        if missing:
            record.after_step(state.heldout_bpb)
    while not budget.spent and signal is None:
        record.before_step()
        begin = time.monotonic()
        state.advance(sampler.windows(state.step, state.columns, budget.fraction),
                      budget.fraction, afresh=sampler.starts_afresh(state.step))
        took, signal, save = _agreed(state, time.monotonic() - begin, stop, next_save)
        state.seconds += took
        budget.took(took)

        if budget.spent:    # so that it is safe while the end is measured
            state.heldout_bpb = None
            keep(finished=False)
        measured = None
        if (due := _due(state, budget, intervals)) > evaluations:
            evaluations = due
            measured = state.heldout_bpb = _measure(state, heldout, budget, reporter)
        record.after_step(measured)
        reporter.update(TrainProgress(
            budget.fraction, state.step, state.seconds,
            math.nan if state.train_bpb is None else state.train_bpb, state.heldout_bpb,
            (state.tokens - tokens_before) / max(1e-9, state.seconds - seconds_before),
            state.skipped))
        if save or (
                intervals.checkpoint_steps and state.step % intervals.checkpoint_steps == 0):
            keep(finished=False)
            next_save = time.monotonic() + intervals.checkpoint_seconds
        if state.processes.size == 1:
            signal = stop.signal    # no other has to be told before it counts
    keep(finished=budget.spent)
    return signal


def _agreed(
    state: TrainState, took: float, stop: Stop, next_save: float,
) -> tuple[float, int | None, bool]:
    """What all processes go by: the time of the slowest, a signal that any of them got, and
    whether the first is to save."""
    every = state.processes.gather([took, stop.signal or 0, time.monotonic() >= next_save])
    signal = int(max(signal for _, signal, _ in every))
    return max(took for took, _, _ in every), signal or None, bool(every[0][2])


def _due(state: TrainState, budget: Budget, intervals: Intervals) -> int:
    """How many evaluations there are to have been."""
    if intervals.heldout_steps is not None:
        return state.step // intervals.heldout_steps + budget.spent
    return math.floor(budget.fraction * intervals.heldout_evaluations + 1e-9)


def _measure(
    state: TrainState, heldout: bytes, budget: Budget, reporter: TrainReporter,
) -> float:
    if budget.spent:
        reporter.message(f"measuring on {len(heldout):,} held-out bytes")
    try:
        settings = state.settings
        with state.in_use():
            return state.processes.first_says(measure_heldout(
                state.model, heldout, settings.recipe, settings.text.tokenizer,
                reporter.measured))
    except FloatingPointError as error:
        raise FloatingPointError(f"{error} after step {state.step}; lower lr "
                                 f"({state.settings.recipe.lr})") from error
