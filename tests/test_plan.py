"""Records as stages: every model has its plan, and what is not one is named."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16, FixedPoint
from sterna.model.quantized.plan import StageKind, formats_of, plan, shape_of
from sterna.model.quantized.records import Embedding, Project, language_model

CONFIG = ModelConfig(d=8, layers=2, dff=12, vocab=20)


@pytest.mark.parametrize("profile", [S16, C12], ids=lambda profile: profile.name)
def test_a_language_model_is_four_stages_a_layer_and_a_head(profile):
    records = language_model(CONFIG, profile)
    assert formats_of(records, profile.name) == profile
    stages = plan(records, profile)
    assert shape_of(stages) == CONFIG
    assert [each.kind for each in stages] == [
        *[StageKind.MLGRU, StageKind.RESIDUAL, StageKind.GLU, StageKind.RESIDUAL] * CONFIG.layers,
        StageKind.HEAD]
    assert {name: (each.rows, each.columns) for each in stages
            for name in each.matrices} == CONFIG.projections()
    # All records but the embedding and what is within a unit are told of.
    told = {each.norm for each in stages} | {
        name for each in stages for name in (*each.matrices, *dict(each.values).values())}
    assert {record.name for record in records} - told == {"embedding.x", *(
        f"layer{layer}.{part}" for layer in range(CONFIG.layers)
        for part in ("mlgru.c.sigmoid", "glu.gate.sigmoid"))}


def test_a_record_with_another_field_is_refused():
    records = language_model(CONFIG, C12)
    free = {(Embedding, "vocab"), (Project, "rows")}    # of the head, which nobody reads
    refused = []
    for index, record in enumerate(records):
        for field in fields(record):
            value = getattr(record, field.name)
            match value:
                case FixedPoint():
                    other = FixedPoint(value.bits + 1, value.frac)
                case bool():
                    other = not value
                case int():
                    other = value + 1
                case _:
                    other = f"{value}'"
            changed = replace(record, **{field.name: other})
            given = (*records[:index], changed, *records[index + 1:])
            if field.name == "name" and isinstance(record, Embedding | Project):
                continue        # what reads it is another, or nothing does
            try:
                stages = plan(given, C12)
            except ValueError as error:
                refused.append(str(error))
                continue
            assert (type(record), field.name) in free, record
            assert len(stages) == 4 * CONFIG.layers + 1
    assert len(refused) > 300
    assert not any("\n" in each for each in refused)


def test_records_may_begin_with_a_vector_and_end_with_a_sum():
    records = language_model(CONFIG, S16)
    stages = plan(records, S16)
    assert plan(records[1:], S16) == stages
    assert plan(records[:-2], S16) == (*stages[:-2], replace(stages[-2], kind=StageKind.LAST))


def test_what_is_left_over_or_missing_is_refused():
    records = language_model(CONFIG, S16)
    for given, message in (
        (records[:-1], "nothing multiplies what head.norm gives"),
        (records[:11], "layer0.mlgru.o goes nowhere"),
        (records[:8], "there is no Recur after"),
        (records[2:], "Project layer0.mlgru.f stands where there should be one of kind Norm"),
    ):
        with pytest.raises(ValueError, match=message):
            plan(given, S16)
