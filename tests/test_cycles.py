"""The cycle model and what is told of it: it holds in any shape, adds up, says what the core has,
and is what ``sterna report`` (tests/test_cli.py has what that refuses) and docs/core.md show."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Fragment, Shape
from amaranth.hdl._mem import MemoryInstance
from command_line import run as run_sterna
from conftest import ODD
from hypothesis import given, settings
from hypothesis import strategies as st
from page_checks import check_page, drawings

from sterna.cli.reports.hardware_page import PARTS, stage_bars, waterfall_plot
from sterna.hw.core.core_params import StageKind
from sterna.hw.core.request import Request
from sterna.hw.oldcore.core import MatMulFreeCore
from sterna.hw.oldcore.plan.core_params import CoreParams
from sterna.hw.oldcore.plan.core_units import CoreUnits
from sterna.hw.oldcore.plan.image import build_image
from sterna.hw.oldcore.timing.cycle_report import (
    PIPELINE,
    Bound,
    alternatives,
    cycle_report,
    memory_bits,
    shape_image,
    tokens_per_second,
    without,
)
from sterna.hw.oldcore.timing.cycles import CoreTimings, CycleModel, _Feed
from sterna.hw.oldcore.timing.steady_state import (
    Cause,
    Token,
    fold_stages,
    stage_name,
    steady_state,
)
from sterna.hw.oldcore.timing.waterfall import Worker, waterfall
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, PROFILES, S16, NumericProfile
from sterna.model.quantized import load_model
from sterna.model.quantized.synthetic import random_model

ROOT = Path(__file__).parents[1]
TINY = CoreParams(ModelConfig.named("tiny"), S16)
NANO = CoreParams(ModelConfig.named("nano"), S16, rows=8, cols=64)
LATER_LAYERS = {"layer1", "layer2", "layer3"}
Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("no_seconds")


@st.composite
def core_params(draw: st.DrawFn, sequences: tuple[int, ...] = (1, 2)) -> CoreParams:
    """A core of any shape: dimensions need not divide by anything."""
    rows = draw(st.sampled_from([1, 2, 3, 4, 8, 16]))
    words = draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
    lanes = draw(st.sampled_from([count for count in range(1, words + 1) if words % count == 0]))
    cols = rows * words
    config = ModelConfig(
        d=draw(st.integers(1, 60)), layers=draw(st.integers(1, 2)),
        dff=draw(st.integers(cols, cols + 100)), vocab=draw(st.sampled_from([2, 65, 256])))
    return CoreParams(
        config, draw(st.sampled_from([S16, C12])), rows=rows, cols=cols,
        sequences=draw(st.sampled_from(sequences)), quant_lanes=rows * lanes,
        digit_bits=draw(st.integers(0, 5)), root_digit_bits=draw(st.integers(1, 4)))


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


# Where the cycles go ------------------------------------------------------------------


@pytest.mark.parametrize("token", [Token.GREEDY, Token.SAMPLED])
@pytest.mark.parametrize("sequences", [1, 2])
@pytest.mark.parametrize("name", ["nano", "tiny", "small"])
def test_the_cycles_of_all_stages_add_up_to_those_of_a_token(
    profile: NumericProfile, name: str, sequences: int, token: Token,
) -> None:
    model = CycleModel(CoreParams(ModelConfig.named(name), profile, sequences=sequences))
    state = steady_state(model, token)
    rows = [state.beats_of(stage) + state.waits(name=stage) for stage in state.names]
    causes = [state.waits(cause=cause) for cause in Cause]
    sequences = [state.waits(sequence=sequence) for sequence in range(sequences)]
    total = model.cycles_per_token(sampled=token is Token.SAMPLED)
    assert sum(rows) == state.cycles_per_token == total
    assert sum(causes) == sum(sequences) == total - model.params.mac_cycles
    assert {stage: state.beats_of(stage) for stage in state.beats} == {
        name: stage.beats for name, stage in zip(state.beats, model.stages, strict=True)}
    assert state.utilisation == pytest.approx(model.utilisation(sampled=token is Token.SAMPLED))


@given(core_params())
def test_they_add_up_in_any_shape(params: CoreParams) -> None:
    model = CycleModel(params)
    state = steady_state(model)
    assert state.waits() + params.mac_cycles == model.cycles_per_token(tokens=30)
    assert model.cycles_per_token(sampled=True) >= params.mac_cycles
    prompt = steady_state(model, Token.PROMPT)
    assert sum(prompt.beats.values()) == prompt.tokens * sum(
        stage.beats for stage in model.stages if stage.kind is not StageKind.HEAD)


@given(core_params(sequences=(1,)))
def test_one_sequence_waits_for_every_latency_of_every_unit(params: CoreParams) -> None:
    model = CycleModel(params)
    units, state, stages = CoreUnits(params), steady_state(model), params.stages
    layers = params.config.layers
    assert {cause: state.waits(cause=cause) for cause in Cause
            if cause not in (Cause.TILES, Cause.SCALE)} == {
        Cause.EMBEDDING: units.embedding.latency + units.embedding.words - 1,
        Cause.MAXIMUM: stages * units.norm.max_steps,
        Cause.NORM: 0,
        Cause.RECIPROCAL: stages * units.norm.first_chunk_steps,
        Cause.ARRAY: stages * (params.feed_steps + params.mac.latency - 1),
        Cause.REQUANTIZE: stages * units.requantize_latency,
        Cause.UNIT: (1 + 2 * layers) * units.residual.latency
        + layers * (units.mlgru.latency + units.glu.latency),
        Cause.CHOICE: units.sampler.greedy_steps + 1,
    }


@given(core_params(sequences=(1, 2)))
def test_a_part_that_takes_no_time_wins_back_what_it_cost_and_no_beat(params: CoreParams) -> None:
    state = steady_state(CycleModel(params))
    left = {bound: steady_state(without(params, bound)).cycles_per_token for bound in Bound}
    assert min(left.values()) >= params.mac_cycles
    if params.sequences > 1:
        return
    won = {bound: state.cycles_per_token - cycles for bound, cycles in left.items()}
    for bound, cause in ((Bound.MAXIMUM, Cause.MAXIMUM), (Bound.SCALE, Cause.SCALE),
                         (Bound.SAMPLING, Cause.CHOICE), (Bound.EMBEDDING, Cause.EMBEDDING),
                         (Bound.NORM, Cause.NORM)):
        assert won[bound] == state.waits(cause=cause)
    # The scale may be waited for in the cycles that another part leaves.
    assert 0 <= won[Bound.PIPELINE] <= sum(state.waits(cause=cause) for cause in PIPELINE)
    assert 0 <= won[Bound.RECIPROCAL] <= state.waits(cause=Cause.RECIPROCAL)
    assert won[Bound.QUANTIZER] >= 0


def test_alternatives_are_cores_of_those_parameters() -> None:
    found = {choice.name: choice for choice in alternatives(TINY)}
    assert list(found) == [
        "quant_lanes 128", "root_digit_bits 4", "quant_lanes 128, root_digit_bits 4",
        "sequences 2", "rows 16", "cols 256"]
    for choice in found.values():
        resized = {"rows", "cols"} & choice.changes.keys()
        lanes: dict[str, Any] = {"quant_lanes": 0} if resized else {}
        changed = replace(TINY, **(lanes | choice.changes))
        assert choice.cycles_per_token == CycleModel(changed).cycles_per_token()
        assert choice.utilisation == pytest.approx(CycleModel(changed).utilisation())
    # What cannot be built is left out, and what is there already.
    widest = replace(TINY, cols=384, quant_lanes=384, sequences=2, root_digit_bits=4)
    assert [choice.name for choice in alternatives(widest)] == ["rows 16"]


def test_the_limit_is_the_array_or_the_costliest_latency() -> None:
    small = cycle_report(shape_image(CoreParams(ModelConfig.named("small"), S16)))
    assert small.limit == "array beats"
    nano = cycle_report(shape_image(CoreParams(ModelConfig.named("nano"), S16, cols=64)))
    assert 2 * nano.ideal < nano.greedy.cycles_per_token
    costs = list(nano.won_back.values())
    assert costs == sorted(costs, reverse=True)
    assert nano.limit == next(iter(nano.won_back)).value == "pipeline"
    assert Bound.NORM not in nano.won_back


def memories(fragment: Fragment) -> Iterator[int]:
    """Bits of each memory of an elaborated design."""
    if isinstance(fragment, MemoryInstance):
        data = fragment._data
        yield data.depth * Shape.cast(data.shape).width
    for part, _, _ in fragment.subfragments:
        yield from memories(part)


@pytest.mark.parametrize(("config", "rows", "cols", "sequences"), [
    (ODD, 8, 8, 1), (ODD, 4, 12, 2), (ModelConfig(5, 1, 3, 1000), 4, 4, 2),
    (ModelConfig(1, 1, 8, 2), 1, 8, 2), (ModelConfig(40, 1, 9, 30), 8, 24, 1),
])
def test_memory_bits_are_those_of_the_elaborated_core(
    profile: NumericProfile, config: ModelConfig, rows: int, cols: int, sequences: int,
) -> None:
    params = CoreParams(config, profile, rows=rows, cols=cols, sequences=sequences)
    image = build_image(random_model(config, profile, seed=4), params)
    found = memory_bits(image)
    assert found.total == sum(memories(Fragment.get(MatMulFreeCore(image), None)))
    assert found.model == image.memory_bits
    # Without a model there may be more, but weights and states are the same.
    shape = memory_bits(shape_image(params))
    assert shape.model["weights"] == found.model["weights"]
    assert shape.model.keys() == found.model.keys()
    assert all(shape.model[name] >= bits for name, bits in found.model.items())
    assert (shape.tables, shape.working["MLGRU state"]) == (
        found.tables, found.working["MLGRU state"])


@pytest.mark.parametrize("sequences", [1, 2])
def test_the_report_is_json_and_a_rate_is_tagged_as_estimated(sequences: int) -> None:
    report = cycle_report(shape_image(replace(TINY, sequences=sequences)))
    data = json.loads(json.dumps(report.as_dict(50.0)))
    rate = data.pop("estimated")
    assert data == json.loads(json.dumps(report.as_dict()))
    assert rate["clock_mhz"] == 50
    assert rate["tokens_per_second"]["greedy"] == pytest.approx(
        50e6 / data["cycles_per_token"]["greedy"])
    assert sum(stage["cycles"] for stage in data["stages"]) == data["cycles_per_token"]["greedy"]
    assert sum(stage["beats"] for stage in data["stages"]) == data["mac_cycles"] == 864
    for stage in data["stages"]:
        assert sum(stage["waits"].values()) == sum(stage["waits_by_sequence"])
        assert len(stage["waits_by_sequence"]) == sequences


@pytest.mark.parametrize("clock", [0, -1, float("nan"), float("inf")])
def test_a_clock_must_be_a_positive_number(clock: float) -> None:
    with pytest.raises(ValueError, match="the clock must be a positive number of MHz"):
        tokens_per_second(steady_state(CycleModel(TINY)), clock)


def test_the_compact_profile_takes_fewer_cycles_and_bits() -> None:
    reports = {name: cycle_report(shape_image(replace(TINY, profile=profile)))
               for name, profile in PROFILES.items()}
    assert reports["C12"].greedy.cycles_per_token < reports["S16"].greedy.cycles_per_token
    assert reports["C12"].memory.total < reports["S16"].memory.total


def test_the_spans_of_a_token_fill_the_cycles_between_two():
    model = CycleModel(TINY)
    found = waterfall(model)
    assert found.cycles == model.cycles_per_token()
    assert found.alike == ((0, 3),)
    assert {end - begin for begin, end in itertools.pairwise(found.layers)} == {376}
    # Some unit works in every cycle of a single sequence, from the request to the choice.
    busy = {cycle for span in found.spans for cycle in range(span.begin, span.end)}
    assert busy == set(range(found.cycles))
    in_array = [span for span in found.spans if span.worker is Worker.ARRAY]
    assert [span.stage for span in in_array] == [stage_name(stage) for stage in model.stages]
    for span, stage in zip(in_array, model.stages, strict=True):
        assert span.end - span.begin >= stage.beats


@settings(max_examples=15)
@given(core_params())
def test_in_any_shape_a_stage_goes_from_unit_to_unit(params: CoreParams):
    model = CycleModel(params)
    found = waterfall(model)
    assert found.spans[0].begin == 0
    for stage in model.stages:
        begins = [span.begin for span in found.spans
                  if span.stage == stage_name(stage) and span.worker is not Worker.SCALE]
        assert begins == sorted(begins)
    assert all(span.begin <= span.end for span in found.spans)
    assert [last for _, last in found.alike][-1] == params.config.layers - 1


@pytest.mark.parametrize("sequences", [1, 2])
def test_the_drawing_has_a_row_for_each_stage_that_differs(sequences: int):
    found = waterfall(CycleModel(replace(TINY, sequences=sequences)))
    drawn = waterfall_plot(found)
    assert drawn == waterfall_plot(found)
    shown = set(re.findall(r">(layer\d .*?|embedding|head|sampling)</text>", drawn))
    folded = {f"layer{layer}" for first, last in found.alike
              for layer in range(first + 1, last + 1)}
    assert shown == {span.stage for span in found.spans
                     if span.stage.split()[0] not in folded}
    assert ("layers 1 to 3, each as layer 0: 3 × 376" in drawn) == (sequences == 1)
    assert f">{found.cycles:,}</text>" in drawn


@pytest.mark.parametrize("sequences", [1, 2])
def test_folded_lines_have_all_stages_once_and_all_cycles(sequences: int):
    state = steady_state(CycleModel(replace(TINY, sequences=sequences)))
    lines = fold_stages(state)
    assert [name for line in lines for name in line.stages] == state.names
    left_out = [line for line in lines if line.like is not None]
    assert [(line.name, line.like, line.layers) for line in left_out] == (
        [("layers 1 to 3", 0, 3)] if sequences == 1 else [("layers 2 to 3", 1, 2)])
    for line in left_out:
        of_layer = sum(state.beats_of(name) + state.waits(name=name)
                       for name in state.names if name.startswith(f"layer{line.like} "))
        assert sum(state.beats_of(name) + state.waits(name=name)
                   for name in line.stages) == line.layers * of_layer


def test_a_layer_that_waits_for_another_cause_is_not_folded():
    state = steady_state(CycleModel(TINY))
    key = next(key for key in state.idle if key[1] == "layer2 out")
    other = replace(state, idle={**state.idle, key: state.idle[key] + 1})
    assert [line.name for line in fold_stages(other) if line.like is not None] == ["layer 1"]
    assert "layer3 down" in [line.name for line in fold_stages(other)]


# The command --------------------------------------------------------------------------


def report(capsys: Capture, *arguments: object) -> str:
    code, out, err = run_sterna(capsys, "report", *arguments)
    assert (code, err) == (0, "")
    return out


def test_it_prints_cycles_stages_bounds_and_memory(capsys: Capture) -> None:
    out = report(capsys, "tiny", "--rows", 8, "--cols", 128)
    cycles = CycleModel(TINY).cycles_per_token()
    assert re.search(rf"^generated, greedy +{cycles:,.0f} ", out, re.M)
    assert f"Bound by the beats of the array: 864 of {cycles:,.0f} cycles" in out
    assert f"If nothing but the array took time: 864 cycles, {cycles - 864:,.0f} fewer." in out
    title = "where the cycles of a greedy token go: layers 1 to 3, each as layer 0"
    assert title in " ".join(out.split())
    for row in ("layer0 f c g", "layers 1 to 3", "head", "sequences 2", "all but the array"):
        assert re.search(rf"^{row} ", out, re.M)
    assert re.search(r"^MLGRU state +working +8,192$", out, re.M)
    assert "estimated" not in out
    assert max(len(line) for line in out.splitlines()) <= 80


def test_bars_are_as_long_as_the_cycles(capsys: Capture) -> None:
    out = report(capsys, "tiny")
    letters = "".join(part.letter for part in PARTS)
    chart = out[out.index("█ beats"):].partition("\n\n")[0]
    found = dict(re.findall(rf"^(\S.*?) +([{letters}]*) [\d,.]+$", chart, re.M))
    state = cycle_report(shape_image(TINY)).greedy
    assert list(found) == [name for name in state.names if name[:6] not in LATER_LAYERS]
    assert "layers 1 to 3, each as layer 0: 3 x 376\n" in out
    totals = {name: float(state.beats_of(name) + state.waits(name=name)) for name in state.names}
    scale = len(found["layer0 gate up"]) / totals["layer0 gate up"]
    for name, bar in found.items():
        assert abs(len(bar) - scale * totals[name]) <= 1
        assert abs(bar.count("█") - scale * float(state.beats_of(name))) <= 1
        assert abs(bar.count("r") - scale * float(
            state.waits(name=name, cause=Cause.RECIPROCAL))) <= 1


def test_a_rate_is_given_at_a_clock_and_tagged(capsys: Capture) -> None:
    out = report(capsys, "tiny", "--clock-mhz", 120.5)
    assert "tokens/s at 120.5 MHz" in out
    assert "(estimated)" in out
    assert f"{120.5e6 / CycleModel(TINY).cycles_per_token():,.0f}" in out
    assert max(len(line) for line in out.splitlines()) <= 80


def test_two_sequences_show_which_of_them_is_waited_for(capsys: Capture) -> None:
    out = report(capsys, "tiny", "--sequences", 2)
    assert re.search(r"the array waits [\d.]+ for sequence 0 and [\d.]+ for sequence 1\.", out)
    assert "longest waits of the array" in out
    assert re.search("^shared norm ", out, re.M)
    assert max(len(line) for line in out.splitlines() if not line.startswith("Of ")) <= 80


def test_json_has_the_figures_of_the_report(capsys: Capture) -> None:
    data = json.loads(report(capsys, "tiny-c12", "--sequences", 2, "--quant-lanes", 64,
                             "--clock-mhz", 100, "--json"))
    model = load_model("tiny-c12")
    image = build_image(model, CoreParams(model.config, model.profile, sequences=2, quant_lanes=64))
    assert data == {"model": "tiny-c12",
                    **json.loads(json.dumps(cycle_report(image).as_dict(100.0)))}
    assert data["memory_bits"]["model"] == image.memory_bits


def test_a_configuration_needs_no_weights_and_json_goes_with_a_page(
    capsys: Capture, tmp_path: Path,
) -> None:
    target = tmp_path / "report.html"
    data = json.loads(report(
        capsys, "--config", "small", "--profile", "C12", "--json", "-o", target))
    assert target.exists()
    params = CoreParams(ModelConfig.named("small"), C12)
    assert (data["model"], data["profile"]) == (None, "C12")
    assert data["cycles_per_token"]["greedy"] == CycleModel(params).cycles_per_token()
    assert data["memory_bits"]["total"] == memory_bits(shape_image(params)).total
    out = report(capsys, "--config", "nano")
    assert out.startswith("nano (no weights)\n")
    assert "profile S16" in out


def test_a_quantized_file_of_any_shape_is_reported(capsys: Capture, tmp_path: Path) -> None:
    path = random_model(ODD, C12, 3).save(tmp_path / "odd[b].safetensors")
    out = report(capsys, path, "--rows", 1, "--cols", 8)
    assert out.startswith(f"{path}\n")
    assert "d 12, 2 layers, dff 21, vocabulary 65" in out


def test_the_page_stands_alone_and_shows_the_bars(capsys: Capture, tmp_path: Path) -> None:
    target = tmp_path / "new" / "report.html"
    out = report(capsys, "tiny", "--sequences", 2, "--clock-mhz", 50, "-o", target)
    assert out.endswith(f"\nreport: {target}\n")
    page = target.read_text(encoding="utf-8")
    check_page(page)
    found = cycle_report(shape_image(replace(TINY, sequences=2)))
    assert drawings(page) == [waterfall_plot(waterfall(CycleModel(found.params))),
                              stage_bars(found)]
    for title in ("Cycles per token", "Where the cycles of a greedy token go",
                  "What each part would win back if it alone took no time",
                  "What other parameters would reach", "Bits of memory"):
        assert f"<h2>{title}</h2>" in page
    assert "(estimated)" in page
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]


# The tables of docs/core.md -----------------------------------------------------------


def table(heading: str) -> list[list[str]]:
    """The first table below a heading of the page, without its two rows of titles."""
    text = (ROOT / "docs" / "core.md").read_text(encoding="utf-8")
    below = text[text.index(f"\n## {heading}\n"):]
    lines = re.search(r"^\|.*\n\|[-|]+\n((?:\|.*\n)+)", below, re.M)
    assert lines, f"no table below {heading}"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1].splitlines()]


def test_cycles_per_token() -> None:
    rows = table("Cycles per token")
    assert len(rows) == 4
    for number, row in enumerate(rows):
        name = re.match(r"`(\w+)`: d (\d+), (\d+) layers, dff (\d+)", row[0] or rows[number - 1][0])
        assert name
        shape = ModelConfig.named(name[1])
        assert (shape.d, shape.layers, shape.dff) == tuple(map(int, name.groups()[1:]))
        for sequences, cycles, busy in ((1, *row[3:5]), (2, *row[5:7])):
            models = [CycleModel(CoreParams(shape, PROFILES[row[1]], sequences=sequences,
                                            quant_lanes=lanes)) for lanes in (16, 32, 64)]
            found = [model.cycles_per_token() for model in models]
            assert [float(cell.replace(",", "")) for cell in cycles.split(";")] == found, row
            assert busy == f"{models[1].utilisation():.1%}".replace("%", " %")
            assert int(row[2].replace(",", "")) == models[0].params.mac_cycles
            for model, greedy in zip(models, found, strict=True):    # as the text says
                assert model.cycles_per_token(sampled=True) == greedy + 84 / sequences


def test_what_the_text_says_beside_the_tables() -> None:
    page = " ".join((ROOT / "docs" / "core.md").read_text(encoding="utf-8").split())
    for profile in (S16, C12):
        timings = CoreTimings.of(replace(TINY, profile=profile))
        assert (timings.greedy, timings.sampled) == (5, 89)
    routed = CycleModel(CoreParams(TINY.config, S16, routing_registers=True)).cycles_per_token()
    assert f"`tiny` takes {int(routed):,} cycles instead of 1,599" in page
