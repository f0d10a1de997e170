"""The cycle model by itself: what must hold whatever the shape."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from core_shapes import core_params
from hypothesis import given, settings
from hypothesis import strategies as st

from sterna.hw.core.plan.core_params import CoreParams
from sterna.hw.core.plan.core_units import CoreUnits
from sterna.hw.core.plan.request import Request
from sterna.hw.core.timing.cycles import CoreTimings, CycleModel, _Feed
from sterna.model.config import ModelConfig
from sterna.model.profile import S16

NANO = CoreParams(ModelConfig.named("nano"), S16, rows=8, cols=64)

requests = st.lists(st.builds(
    lambda predict, tokens, temperature: Request(
        (0,) * len(predict), tokens, temperature, predict=tuple(predict)),
    st.lists(st.booleans(), min_size=1, max_size=4), st.integers(0, 3),
    st.sampled_from([0.0, 0.7])), max_size=3)


def expected_stages(params: CoreParams, request: Request, predict: bool) -> list[int]:
    """Stages of each token that follows from one of a prompt; the last generated has none."""
    if not predict:
        return [params.stages - 1]
    return [params.stages] * max(request.tokens, 1)


def one_sequence(params: CoreParams) -> float:
    """Cycles per token of one sequence: after the first, all tokens are alike."""
    return CycleModel(params).cycles_per_token(tokens=4)


@given(core_params(), st.booleans())
def test_no_token_takes_fewer_cycles_than_its_beats(params: CoreParams, sampled: bool) -> None:
    cycles = CycleModel(params).cycles_per_token(sampled=sampled)
    assert cycles >= params.mac_cycles


@given(core_params(sequences=(1,)))
def test_two_sequences_are_never_slower_together_than_one_after_the_other(
    params: CoreParams,
) -> None:
    both = CycleModel(replace(params, sequences=2)).cycles_per_token(tokens=24)
    assert both <= one_sequence(params)


@given(core_params(sequences=(1,)))
def test_a_wider_quantizer_costs_no_more_than_its_deeper_sum(params: CoreParams) -> None:
    # All tiles come sooner, but the sum of squares has more levels, and may delay the scale.
    wide = replace(params, quant_lanes=params.cols)
    levels = CoreUnits(wide).norm.tree_steps - CoreUnits(params).norm.tree_steps
    assert one_sequence(wide) <= one_sequence(params) + params.stages * max(levels, 0)


@pytest.mark.parametrize("name", ["tiny", "small"])
def test_more_quantizer_lanes_are_faster_on_the_usual_array(name: str) -> None:
    cycles = [
        one_sequence(CoreParams(ModelConfig.named(name), S16, quant_lanes=lanes))
        for lanes in (8, 16, 32, 64, 128)]
    assert cycles == sorted(cycles, reverse=True)
    assert cycles[0] > cycles[-1]


@given(core_params(sequences=(1,)))
def test_faster_dividers_and_roots_are_never_slower_for_one_sequence(params: CoreParams) -> None:
    fastest = replace(params, root_digit_bits=4)
    slowest = replace(params, digit_bits=1, root_digit_bits=1)
    cycles = [one_sequence(each) for each in (fastest, params, slowest)]
    assert cycles == sorted(cycles)


@given(core_params())
def test_a_prompt_token_without_prediction_is_cheaper(params: CoreParams) -> None:
    def last_done(predict: bool) -> int:
        queue = [Request((0,) * 6, predict=(predict,) * 6)]
        return max(token.done for token in CycleModel(params).run([queue] * params.sequences))

    assert last_done(False) < last_done(True)


@given(core_params(sequences=(1,)))
def test_sampling_costs_the_steps_of_the_sampler(params: CoreParams) -> None:
    model = CycleModel(params)
    sampled = model.cycles_per_token(sampled=True, tokens=4)
    assert sampled - one_sequence(params) == model.timings.sampled - model.timings.greedy


@given(core_params(), st.lists(requests, min_size=2, max_size=2))
def test_every_token_goes_through_its_stages_one_after_the_other(
    params: CoreParams, queues: list[list[Request]],
) -> None:
    model = CycleModel(params)
    queues = queues[:params.sequences]
    times = model.run(queues)
    for sequence, queue in enumerate(queues):
        tokens = [token for token in times if token.sequence == sequence]
        assert [len(token.stages) for token in tokens] == [
            count for request in queue for predict in request.predictions
            for count in expected_stages(params, request, predict)]
        for token in tokens:
            moments = [token.request]
            for index, stage in enumerate(token.stages):
                assert stage.index == index
                beats = model.stages[index].beats
                assert stage.last_beat - stage.first_beat >= beats - 1
                moments += [stage.service, stage.first_beat, stage.last_result]
            assert moments == sorted(set(moments))
            assert token.done >= moments[-1]
        for earlier, later in itertools.pairwise(tokens):
            assert later.request > earlier.done


@given(core_params(), st.lists(requests, min_size=2, max_size=2))
def test_the_array_takes_one_stage_at_a_time(
    params: CoreParams, queues: list[list[Request]],
) -> None:
    times = CycleModel(params).run(queues[:params.sequences])
    taken = sorted(
        (stage.first_beat, stage.last_beat) for token in times for stage in token.stages)
    for (_, end), (begin, _) in itertools.pairwise(taken):
        assert begin > end


@given(core_params(sequences=(2,)), requests)
def test_a_sequence_alone_takes_as_long_as_a_core_with_one(
    params: CoreParams, queue: list[Request],
) -> None:
    alone = CycleModel(replace(params, sequences=1)).run([queue])
    beside = CycleModel(params).run([[], queue])
    assert [(token.request, token.done) for token in beside] == [
        (token.request, token.done) for token in alone]
    assert {token.sequence for token in beside} <= {1}


def test_without_requests_nothing_happens() -> None:
    assert CycleModel(NANO).run([[]]) == []


def test_a_prompt_in_pieces_takes_as_long_as_the_whole() -> None:
    whole = Request((0,) * 4, 3, predict=(False, True, False, True))
    pieces = [Request((0, 0), 3), Request((0, 0), 3, start=False)]
    assert CycleModel(NANO).run([[whole]]) == CycleModel(NANO).run([pieces])


@pytest.mark.parametrize(("sequences", "requests", "message"), [
    (1, [[Request((0,), 3, stop_token=1)]], "cannot know when a stop token comes"),
    *((sequences, [[Request((0,), 1)]] * lists,
       f"a list of requests for each of {sequences} sequences, got {lists}")
      for sequences, lists in ((1, 0), (1, 2), (2, 1), (2, 3)))])
def test_requests_that_cannot_be_foreseen_are_refused(sequences, requests, message) -> None:
    with pytest.raises(ValueError, match=message):
        CycleModel(replace(NANO, sequences=sequences)).run(requests)


class _FeedThatRemembers(_Feed):
    """Looks at every stop there was."""

    def _moving(self, cycle: int) -> int:
        for stop in self._stops:
            if stop <= cycle < stop + self._fill:
                cycle = stop + self._fill
        return cycle


@settings(max_examples=200)
@given(st.integers(2, 3), st.sampled_from([2, 5, 15, 30]),
       st.lists(st.tuples(st.booleans(), st.sampled_from([0, 1, 7, 40])), min_size=20, max_size=60))
def test_stops_that_are_forgotten_are_over(steps, fill, beats):
    timings = replace(CoreTimings.of(NANO), feed=steps, fill=fill)
    feeds = [_Feed(timings), _FeedThatRemembers(timings)]
    earliest = 0
    for fresh, pause in beats:
        found, expected = (feed.issue(earliest, fresh) for feed in feeds)
        assert found == expected
        earliest = found[0] + 1 + pause
