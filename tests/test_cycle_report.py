"""The cycle report: everything adds up, and says what the core really has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from amaranth.hdl import Fragment, Shape
from amaranth.hdl._mem import MemoryInstance
from conftest import ODD
from core_shapes import core_params
from hypothesis import given

from sterna.hw.core.core import MatMulFreeCore
from sterna.hw.core.plan.core_params import CoreParams, StageKind
from sterna.hw.core.plan.core_units import CoreUnits
from sterna.hw.core.plan.image import build_image
from sterna.hw.core.timing.cycle_report import (
    PIPELINE,
    Bound,
    alternatives,
    cycle_report,
    memory_bits,
    shape_image,
    tokens_per_second,
    without,
)
from sterna.hw.core.timing.cycles import CycleModel
from sterna.hw.core.timing.steady_state import Cause, Token, steady_state
from sterna.model.config import ModelConfig
from sterna.model.profile import PROFILES, S16, NumericProfile
from sterna.model.quantized.synthetic import random_model

TINY = CoreParams(ModelConfig.named("tiny"), S16)


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


@given(core_params(sequences=(1,)))
def test_a_part_that_takes_no_time_wins_back_what_it_cost(params: CoreParams) -> None:
    state = steady_state(CycleModel(params))
    won = {bound: state.cycles_per_token - steady_state(without(params, bound)).cycles_per_token
           for bound in Bound}
    for bound, cause in ((Bound.MAXIMUM, Cause.MAXIMUM), (Bound.SCALE, Cause.SCALE),
                         (Bound.SAMPLING, Cause.CHOICE), (Bound.EMBEDDING, Cause.EMBEDDING),
                         (Bound.NORM, Cause.NORM)):
        assert won[bound] == state.waits(cause=cause)
    # The scale may be waited for in the cycles that another part leaves.
    assert 0 <= won[Bound.PIPELINE] <= sum(state.waits(cause=cause) for cause in PIPELINE)
    assert 0 <= won[Bound.RECIPROCAL] <= state.waits(cause=Cause.RECIPROCAL)
    assert won[Bound.QUANTIZER] >= 0


@given(core_params())
def test_no_part_wins_back_a_beat(params: CoreParams) -> None:
    for bound in Bound:
        assert steady_state(without(params, bound)).cycles_per_token >= params.mac_cycles


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
    widest = replace(
        TINY, cols=384, quant_lanes=384, sequences=2, root_digit_bits=4)
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
