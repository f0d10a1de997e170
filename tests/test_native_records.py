"""The compiled operator computes the integers of the reference, with every kernel."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import ODD
from extreme_models import EXTREMES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_graphs import random_hgrn_bit, session, session_of
from onnx.numpy_helper import from_array, to_array
from test_onnx_forms import odd_model_of, odd_profiles

from sterna.export.forms.forms import build
from sterna.export.native.ops import KERNEL_VARIABLE, OpsError, with_ops
from sterna.export.native.program import FIELDS
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16, FixedPoint, NumericProfile
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.hgrn_bit import WIDTHS, HgrnBitShape
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.synthetic import random_model

SHAPES = [
    ModelConfig(d=1, layers=1, dff=1, vocab=2),
    ModelConfig(d=48, layers=1, dff=77, vocab=65),
    ModelConfig(d=64, layers=3, dff=100, vocab=256),
]
PUBLISHED = HgrnBitShape(d=40, layers=2, dff=77, vocab=90)

WIDEST = NumericProfile(
    "widest", x=FixedPoint(24, 8), z=FixedPoint(16, 7), h=FixedPoint(24, 15),
    o=FixedPoint(24, 12), p=FixedPoint(24, 4), logit=FixedPoint(24, 8), reciprocal_bits=24,
    root_frac=10, scale_frac=24, mantissa_bits=24, scale_bits=24, sigmoid_frac=24,
    sigmoid_segments=512)


def _feed(model: QuantizedModel, batch: int, length: int, first: int = 0) -> dict[str, np.ndarray]:
    tokens = np.random.default_rng(5).integers(0, model.vocab, (batch, length))
    state = np.zeros((len(model.states), batch, model.states[0].width), np.int32)
    return {"tokens": tokens, "state": state, "logits_from": np.array([first])}


def _check(model: QuantizedModel, library: Path, batch: int = 2, length: int = 20) -> None:
    """A whole sequence at once, and then token by token."""
    runner, feed = session(build(model), library), _feed(model, batch, length)
    expected, last = IntegerModel(model).run(feed["tokens"])
    logits, state = runner.run(None, feed)
    np.testing.assert_array_equal(logits, expected)
    np.testing.assert_array_equal(state, last)
    state = feed["state"]
    for t in range(length):
        logits, state = runner.run(
            None, feed | {"tokens": feed["tokens"][:, t:t + 1], "state": state})
        np.testing.assert_array_equal(logits[:, 0], expected[:, t], err_msg=f"token {t}")
    np.testing.assert_array_equal(state, last)


@pytest.fixture
def forced_kernel(native_kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNEL_VARIABLE, native_kernel)


def _bent(profile: NumericProfile) -> QuantizedModel:
    """A file may hold any table that does not decrease."""
    model = random_model(ODD, profile, 4)
    model.sigmoid[30:] = np.minimum(model.sigmoid[30:] + 7, profile.sigmoid_max)
    return model


MODELS: dict[str, Callable[[NumericProfile], QuantizedModel]] = {
    **{str(config): partial(random_model, config, seed=3) for config in SHAPES},
    **{name: lambda profile, change=change: change(random_model(ODD, profile, 1))
       for name, change in EXTREMES.items()},
    "saturation everywhere": partial(random_model, ODD, seed=2, gain=100.0),
    "a table that is no sigmoid": _bent}


@pytest.mark.usefixtures("forced_kernel")
@pytest.mark.parametrize("name", MODELS)
def test_records_equal_the_reference(name, profile, native_ops):
    _check(MODELS[name](profile), native_ops)


@pytest.mark.usefixtures("forced_kernel")
@pytest.mark.parametrize(("widths", "gain"), [
    ("P24", 1.5), ("S16", 1.5), ("C12", 1.5), ("S16", 30.0), ("C12", 30.0)])
def test_a_published_architecture_equals_the_reference(widths, gain, native_ops):
    _check(random_hgrn_bit(PUBLISHED, WIDTHS[widths], seed=1, gain=gain), native_ops)


@pytest.mark.usefixtures("forced_kernel")
@pytest.mark.parametrize(("batch", "length"), [(1, 5), (3, 50), (17, 5), (1, 131)])
def test_batch_and_length_are_free(odd_model, batch, length, native_ops):
    _check(odd_model, native_ops, batch, length)


@pytest.mark.usefixtures("forced_kernel")
@pytest.mark.parametrize("gain", [1.5, 100.0])
def test_the_widest_formats_are_exact(gain, native_ops):
    _check(random_model(ODD, WIDEST, 3, gain=gain), native_ops)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(odd_profiles(), st.integers(0, 2**32 - 1))
def test_any_profile_is_exact(native_ops, native_kernel, profile, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KERNEL_VARIABLE, native_kernel)
        _check(odd_model_of(profile, seed), native_ops, batch=1, length=6)


@pytest.mark.parametrize("model", [
    random_model(ODD, S16, 4), random_hgrn_bit(PUBLISHED, WIDTHS["S16"])], ids=["own", "published"])
def test_logits_begin_where_they_are_wanted(model, native_ops):
    batch, length = 3, 50       # more rows than a tile has
    runner, feed = session(build(model), native_ops), _feed(model, batch, length)
    expected, last = IntegerModel(model).run(feed["tokens"])
    for first in (0, 1, 21, 22, 49, 50, 99, -1, -7, -50, -51, -2**63):
        logits, state = runner.run(None, feed | {"logits_from": np.array([first])})
        np.testing.assert_array_equal(logits, expected[:, max(first, -length):])
        np.testing.assert_array_equal(state, last)


def test_a_graph_of_one_token_needs_no_first_position(native_ops):
    model = random_model(ODD, C12, 4)
    proto, feed = build(model), _feed(model, 2, 1)
    del proto.graph.input[2], feed["logits_from"]
    logits, _ = session(proto, native_ops).run(None, feed)
    np.testing.assert_array_equal(logits, IntegerModel(model).run(feed["tokens"])[0])


def test_one_session_runs_in_several_threads(native_ops):
    model = random_model(ModelConfig(d=96, layers=1, dff=200, vocab=256), S16, 4)
    runner = session(build(model), native_ops)
    feeds = [_feed(model, 1 + i % 3, 1 + i % 70, -1) for i in range(200)]
    expected = [runner.run(None, feed) for feed in feeds]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda feed: runner.run(None, feed), feeds))
    for ours, theirs in zip(got, expected, strict=True):
        assert all(np.array_equal(*pair) for pair in zip(ours, theirs, strict=True))


# What is refused ----------------------------------------------------------------------


@pytest.mark.parametrize(("change", "match"), [
    ({"tokens": np.array([[0, 65]])}, r"tokens must be from 0 to 64, got 65"),
    ({"tokens": np.array([[0, -1]])}, r"tokens must be from 0 to 64, got -1"),
    ({"state": np.full((2, 1, 12), 1 << 15, np.int32)}, r"state must be from -32768 to 32767, got"),
    ({"state": np.zeros((2, 1, 11), np.int32)},
     r"Records: state must be int32 \[2, 1, 12\], got int32 \[2, 1, 11\]"),
    ({"state": np.zeros((2, 2, 12), np.int32)}, r"state must be int32 \[2, 1, 12\], got int32"),
])
def test_what_a_call_brings_is_checked(native_ops, change, match):
    model = random_model(ODD, S16, 4)
    proto = build(model)
    for each in (proto.graph.input[0], proto.graph.input[1]):
        each.type.tensor_type.ClearField("shape")       # onnxruntime would refuse some itself
    runner, feed = session(proto, native_ops), _feed(model, 1, 2)
    with pytest.raises(Exception, match=match):
        runner.run(None, feed | change)


def _changed(name: str, values: np.ndarray | None) -> onnx.ModelProto:
    """The graph of the operator with another tensor, or as an input where it is None."""
    proto = with_ops(build(random_model(ODD, S16, 4)))
    (tensor,) = [each for each in proto.graph.initializer if each.name == name]
    if values is None:
        proto.graph.input.append(onnx.helper.make_tensor_value_info(
            name, tensor.data_type, list(tensor.dims)))
        proto.graph.initializer.remove(tensor)
    else:
        tensor.CopyFrom(from_array(values, name))
    return proto


def _with_code_3() -> np.ndarray:
    tiles = np.zeros((1, 1, 16, 4), np.uint8)
    tiles[0, 0, 5, 2] = 0b10_11_00_00
    return tiles


@pytest.mark.parametrize(("name", "values", "match"), [
    ("layer1.glu.down.bias", np.zeros(11, np.int32),
     r"layer1\.glu\.down\.bias must be int32 \[12\], got int32 \[11\]"),
    ("head.weight", np.zeros((5, 1, 16, 4), np.int8),
     r"head\.weight must be uint8 \[5, 1, 16, 4\], got another type \[5, 1"),
    ("layer0.mlgru.f.weight", np.zeros((1, 2, 16, 4), np.uint8),
     r"layer0\.mlgru\.f\.weight must be uint8 \[1, 1, 16, 4\], got uint8 \[1, 2, 16, 4\]"),
    ("layer0.mlgru.f.weight", _with_code_3(),
     r"layer0\.mlgru\.f\.weight: element \[0, 0, 5, 2\] holds a code that is not -1, 0 or 1"),
    ("embedding", np.zeros((64, 12), np.int16), r"embedding must be int16 \[65, 12\], got int16"),
    ("embedding", np.full((65, 12), 1 << 15, np.int32), r"embedding must be from -32768 to 32767"),
    ("sigmoid.table", np.zeros(64, np.int32), r"sigmoid: its table does not cover"),
    ("sigmoid.table", np.full(65, -1, np.int32), r"sigmoid\.table must be from 0 to 2\^24"),
    ("head.bias", None, r"Records: input \d+ must be an initialiser"),
    ("program", np.zeros((9, 3), np.int64), r"program must be int64 \[any, 17\], got int64 \[9"),
])
def test_tensors_that_do_not_fit_are_refused(native_ops, name, values, match):
    with pytest.raises(Exception, match=match):
        session_of(_changed(name, values), native_ops)


def _rewritten(record: str, **numbers: int) -> onnx.ModelProto:
    """The graph of the operator with other numbers in one record of its program."""
    proto = with_ops(build(random_hgrn_bit(PUBLISHED, WIDTHS["S16"])))
    (node,) = proto.graph.node
    names = onnx.helper.get_node_attr_value(node, "names").decode().split("\n")
    program = to_array(proto.graph.initializer[0]).copy()
    for field, value in numbers.items():
        program[names.index(record), FIELDS.index(field)] = value
    proto.graph.initializer[0].CopyFrom(from_array(program, "program"))
    return proto


@pytest.mark.parametrize(("record", "numbers", "match"), [
    ("head", {"kind": 12}, r"record head: kind 12 is not known"),
    ("layer0.glu.up", {"result": -1}, r"layer0\.glu\.up: the logits must be the last result"),
    ("layer0.mlgru.o", {"result": -1}, r"slots must be numbered from 0 on, got -1"),
    ("layer0.mlgru.o", {"result": 99}, r"slots must be numbered from 0 on, got 99"),
    ("layer0.glu.p", {"result": 0}, r"p: slot 0 is of another kind or width"),
    ("layer0.mlgru.o", {"x": 99}, r"o: slot 99 does not hold what it reads, 40 v"),
    ("layer0.mlgru.o", {"y": -1}, r"slot -1 does not hold what it reads"),
    ("layer0.mlgru.o", {"shift": -40}, r"its numbers need more than 62 bits"),
    ("layer0.mlgru.o", {"shift": 63}, r"shift must be from -40 to 62, got 63"),
    ("layer0.mlgru.o", {"width": 0}, r"width must be from 1 to 16777216, got 0"),
    ("layer0.mlgru.h", {"high": 5}, r"all states must have one width and format"),
    ("layer0.mlgru.out", {"columns": 41}, r"out: slot \d+ does not hold what it reads"),
    ("layer0.mlgru.out", {"mantissa": -1}, r"mantissa must be from 0 to 16777216, got -1"),
    ("layer0.mlgru.out_root", {"root_frac": 12}, r"root: a sum of squares needs more"),
    ("layer0.mlgru.c.norm", {"reciprocal_bits": 49}, r"norm: reciprocal_bits must be from 0 to 48"),
    ("layer0.mlgru.c.norm", {"shift": 50}, r"norm: its scale needs more than 64 bits"),
    ("layer0.mlgru.x", {"low": -1 << 31}, r"x: low must be from -1073741824 to 0"),
])
def test_programs_that_contradict_themselves_are_refused(native_ops, record, numbers, match):
    with pytest.raises(Exception, match=match):
        session_of(_rewritten(record, **numbers), native_ops)


@pytest.mark.parametrize(("name", "values", "match"), [
    ("embedding", None, r"the graph has no tensor embedding"),
    ("head.divisor", np.array([3.0]),
     r"head\.k must be a whole number of 16 bits, and head\.divisor a power of two .*\[3\.0\]"),
])
def test_files_without_what_the_operator_needs_are_refused(name, values, match):
    proto = build(random_model(ODD, S16, 4))
    (tensor,) = [each for each in proto.graph.initializer if each.name == name]
    proto.graph.initializer.remove(tensor)
    if values is not None:
        proto.graph.initializer.append(from_array(values, name))
    with pytest.raises(OpsError, match=match):
        with_ops(proto)
    del proto.metadata_props[:]
    with pytest.raises(OpsError, match="on the operators: records must be a list"):
        with_ops(proto)


def test_the_graph_has_the_ports_of_the_file_and_its_weights_as_they_are():
    proto = build(random_hgrn_bit(PUBLISHED, WIDTHS["C12"]))
    before = proto.SerializeToString()
    graph = with_ops(proto)
    assert proto.SerializeToString() == before
    assert list(graph.graph.input) == list(proto.graph.input)
    assert list(graph.graph.output) == list(proto.graph.output)
    assert [each.op_type for each in graph.graph.node] == ["Records"]
    stored = {each.name: each for each in proto.graph.initializer
              if not each.name.startswith("constant")}
    program, *constants = graph.graph.initializer
    assert all(each == stored[each.name] for each in constants)
    assert set(stored) - {each.name for each in constants} == {
        f"{name}.{part}" for name in (each.removesuffix(".weight") for each in stored
                                      if each.endswith(".weight")) for part in ("k", "divisor")}
    slots = to_array(program)[:, FIELDS.index("result")]
    assert slots.max() < 20     # many records, few slots
