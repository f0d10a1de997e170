"""The packer of the core: what it packs unpacks to the same model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from amaranth.hdl import Fragment
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_cores import SHAPES, Shape, assert_same_model

from sterna.hw.core.core_params import StageKind
from sterna.hw.oldcore.core import MatMulFreeCore
from sterna.hw.oldcore.plan.core_params import CoreParams, program
from sterna.hw.oldcore.plan.core_units import CoreUnits
from sterna.hw.oldcore.plan.image import CoreImage, build_image, unpack_image
from sterna.hw.oldcore.post_processor import requantize_params
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.synthetic import random_model


def params_of(shape: Shape) -> CoreParams:
    model = shape.model()
    return CoreParams(model.config, model.profile, shape.rows, shape.cols, shape.sequences,
                      shape.quant_lanes)


def check_same(model: QuantizedModel, image: CoreImage) -> None:
    assert_same_model(unpack_image(image, model.tokenizer), model)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_odd_shapes_unpack_to_themselves(shape: Shape) -> None:
    model = shape.model()
    image = build_image(model, params_of(shape))
    check_same(model, image)
    assert build_image(model, params_of(shape)) == image


def test_the_image_of_the_largest_vocabulary_unpacks_to_the_model() -> None:
    model = random_model(ModelConfig(8, 1, 12, 1 << 16), C12, seed=2)
    params = CoreParams(model.config, C12, 4, 4)
    assert (params.token_bits, params.vocab_words) == (16, 1 << 14)
    check_same(model, build_image(model, params))


@given(
    d=st.integers(1, 40), layers=st.integers(1, 3), dff=st.integers(1, 60),
    vocab=st.integers(2, 90), rows=st.sampled_from([1, 2, 3, 5, 8]), words=st.integers(1, 6),
    seed=st.integers(0, 99), profile=st.sampled_from([S16, C12]),
    style=st.sampled_from(ArrayStyle))
@settings(max_examples=60)
def test_any_model_unpacks_to_itself(
    d, layers, dff, vocab, rows, words, seed, profile, style,
) -> None:
    config = ModelConfig(d, layers, max(dff, rows * words), vocab)
    model = random_model(config, profile, seed=seed)
    params = CoreParams(config, profile, rows, rows * words, style=style)
    image = build_image(model, params)
    assert all(0 <= word < 1 << params.weight_bits for word in image.weights)
    check_same(model, image)


def test_weight_words_are_in_the_order_of_use() -> None:
    shape = SHAPES[0]
    model, params = shape.model(), params_of(shape)
    image = build_image(model, params)
    stages = program(params)
    assert [stage.kind for stage in stages[:5]] == [
        StageKind.MLGRU, StageKind.RESIDUAL, StageKind.GLU, StageKind.RESIDUAL, StageKind.MLGRU]
    assert sum(stage.beats for stage in stages) == params.mac_cycles == len(image.weights)
    # f, c and g of the first group of rows, two tiles each: row 1 of c begins in word 2.
    stage = stages[0]
    word = image.weights[stage.first_weight + stage.tiles]
    codes = [(word >> 2 * (params.cols + column)) & 3 for column in range(params.cols)]
    weight = model.projections["layer0.mlgru.c"].weight[1, :params.cols]
    assert codes == [{0: 0, 1: 1, -1: 3}[int(value)] for value in weight]


def test_a_changed_word_is_noticed() -> None:
    shape = SHAPES[0]
    image = build_image(shape.model(), params_of(shape))
    for changed, message in (
        (replace(image, weights=[2, *image.weights[1:]]), "code 2 is none of 0, 1, 3"),
        (replace(image, starts=[image.starts[0] ^ 1, *image.starts[1:]]),
         "start values are wrong"),
    ):
        with pytest.raises(ValueError, match=message):
            unpack_image(changed)


def test_parameters_of_another_model_are_refused() -> None:
    with pytest.raises(ValueError, match="the parameters are for"):
        build_image(SHAPES[0].model(), params_of(SHAPES[1]))


@pytest.mark.parametrize(("changes", "message"), [
    ({"rows": 0}, "rows must be a whole number from 1"),
    ({"sequences": 3}, "sequences must be a whole number from 1 to 2"),
    ({"digit_bits": 6}, "digit_bits must be a whole number from 0 to 5, got 6"),
    ({"root_digit_bits": 5}, "root_digit_bits must be a whole number from 0 to 4, got 5"),
    ({"style": "foo"}, "style must be one of generic, ecp5-chain, .*, got 'foo'"),
    ({"rows": 7}, "must be a multiple of rows"),
    ({"quant_lanes": 12}, "must be a multiple of rows"),
    ({"quant_lanes": 48}, "divide cols"),
])
def test_impossible_sizes_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CoreParams(ModelConfig.named("tiny"), S16, **changes)


@pytest.mark.parametrize("shape", SHAPES[:4], ids=lambda shape: shape.name)
def test_the_core_is_built_of_the_units_that_the_cycle_model_counts_with(shape: Shape) -> None:
    params = params_of(shape)
    image = build_image(shape.model(), params)
    core, units = MatMulFreeCore(image), CoreUnits(params)
    assert core.array.params == units.mac
    assert core.norm.params == units.norm
    assert core.glu.params == units.glu
    assert core.mlgru.params == units.mlgru
    assert core.residuals[0].params == units.residual
    assert core.samplers[0].params == units.sampler
    assert requantize_params(image).latency == units.requantize_latency
    embedding = core.embedding.params
    assert replace(embedding, element_bits=units.embedding.element_bits) == units.embedding
    assert Fragment.get(core, None).subfragments        # elaborated, as it has to be
