"""The budget of a run: time becomes steps, and the schedule goes to its end whatever happens."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import pairwise, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sterna.model.torch.training.budget import StepBudget, TimeBudget


def spend(budget: TimeBudget, durations: Iterable[float]) -> tuple[list[float], float]:
    """The fraction before each step, and at the end; the seconds that all took."""
    fractions, seconds = [budget.fraction], 0.0
    for duration in durations:
        seconds += duration
        budget.took(duration)
        fractions.append(budget.fraction)
        if budget.spent:
            break
    return fractions, seconds


def strides(fractions: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(fractions)]


def steps_of(seconds: float, seed: int, stalls: dict[int, float]) -> Iterator[float]:
    """Durations that differ by 20 %, with stalls at these steps."""
    source = random.Random(seed)
    for step in range(1_000_000):
        yield seconds * source.uniform(0.9, 1.1) + stalls.get(step, 0.0)


@settings(max_examples=25)
@given(step=st.floats(0.05, 0.5), seed=st.integers(0, 99), stalls=st.dictionaries(
    st.integers(0, 1200), st.floats(0.0, 100.0), max_size=5))
def test_stalls_never_make_the_schedule_jump(
        step: float, seed: int, stalls: dict[int, float]) -> None:
    fractions, _ = spend(TimeBudget(60.0), steps_of(step, seed, stalls))
    found = strides(fractions)
    assert fractions[-1] == 1.0
    assert min(found) >= 0.0
    # As fast as a rest is hurried, of a speed that may be mistaken by what a stall counts for.
    assert max(found) <= 1.5 * 1.5 * 1.5 * step / 60.0 + 1e-9
    moving = [each for each in found[:-1] if each > 0.0]
    assert all(after <= before * 1.0 / 0.95 + 1e-12
               for before, after in pairwise(moving))


@settings(max_examples=25)
@given(step=st.floats(0.05, 0.2), seed=st.integers(0, 99), stall=st.floats(0.0, 9.0),
       at=st.floats(0.0, 0.5))
def test_without_stalls_in_the_second_half_a_run_ends_on_time(
        step: float, seed: int, stall: float, at: float) -> None:
    """Within 2 %, if no more than a sixth of the time was lost."""
    budget = TimeBudget(60.0)
    stalls = {int(at * (60.0 - stall) / step): stall}
    _, seconds = spend(budget, steps_of(step, seed, stalls))
    assert seconds == pytest.approx(60.0, rel=0.02)


@pytest.mark.parametrize("factor", [0.3, 3.0])
def test_another_speed_is_followed(factor: float) -> None:
    durations = [*repeat(0.05, 400), *repeat(0.05 * factor, 10_000)]
    fractions, seconds = spend(TimeBudget(60.0), durations)
    assert seconds == pytest.approx(60.0, rel=0.01)
    assert fractions[400] == pytest.approx(1 / 3, abs=0.02)


def test_a_run_of_few_long_steps_ends_after_them() -> None:
    fractions, _ = spend(TimeBudget(1.0), repeat(10.0))
    assert fractions == [0.0, 0.0, 0.0, 0.0, 1.0]


@settings(max_examples=20)
@given(cut=st.integers(1, 900))
def test_a_plan_is_gone_on_with(cut: int) -> None:
    whole, _ = spend(TimeBudget(10.0), repeat(0.01))
    first = TimeBudget(10.0)
    for _ in range(cut):
        first.took(0.01)
    second = TimeBudget(10.0, 0.01 * cut, first.to_json())
    assert second.fraction == first.fraction == whole[cut]
    rest, seconds = spend(second, repeat(0.01))
    assert 0.01 * cut + seconds == pytest.approx(10.0, rel=0.02)
    assert max(strides(rest)) < 1.5 / 1000
    longer = TimeBudget(20.0, 0.01 * cut, first.to_json())
    assert longer.fraction == pytest.approx(0.01 * cut / 20.0)


def test_steps_are_counted() -> None:
    budget = StepBudget(4, 2)
    assert (budget.fraction, budget.spent) == (0.5, False)
    budget.took(1.0)
    budget.took(9.0)
    assert (budget.fraction, budget.spent) == (1.0, True)
    assert StepBudget(3, 5).fraction == 1.0


def test_a_time_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="seconds must be above 0"):
        TimeBudget(0.0)
