"""The waterfall of a token: its spans are the cycle model's, and like layers are told once."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from core_shapes import core_params
from hypothesis import given, settings

from sterna.cli.reports.hardware_page import waterfall_plot
from sterna.hw.core.plan.core_params import CoreParams
from sterna.hw.core.timing.cycles import CycleModel
from sterna.hw.core.timing.steady_state import fold_stages, stage_name, steady_state
from sterna.hw.core.timing.waterfall import Worker, waterfall
from sterna.model.config import ModelConfig
from sterna.model.profile import S16

TINY = CoreParams(ModelConfig.named("tiny"), S16)


def test_the_spans_of_a_token_fill_the_cycles_between_two():
    model = CycleModel(TINY)
    found = waterfall(model)
    assert found.cycles == model.cycles_per_token()
    assert found.alike == ((0, 3),)
    assert {end - begin for begin, end in pairwise(found.layers)} == {376}
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
