"""From torch modules, and from weights of elsewhere, to layers of integers."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from conftest import ODD
from torch import nn

from sterna.export import export_layer
from sterna.model.layers import Layer, TernaryMatrix
from sterna.model.profile import C12, S16, FixedPoint, NumericProfile
from sterna.model.torch.mixers.channel import GLU
from sterna.model.torch.mixers.recurrent import MLGRU
from sterna.model.torch.network.bitlinear import BitLinear
from sterna.model.torch.network.projection import MixerInit
from sterna.model.torch.stack.convert import (
    Input,
    Residual,
    advance,
    from_brevitas,
    from_module,
    initial_states,
    ternary_matrix_of,
)
from sterna.model.torch.stack.language_model import LanguageModel
from sterna.model.torch.training.quantize import quantize

_LEAST_DECIBELS = {"S16": 40.0, "C12": 20.0}
"""Measured: 46 to 77 with S16, 23 to 28 with C12, whose pre-activations have 4 fraction bits;
4 to 12 with one row of each matrix the other way round."""


def _linear(columns: int, rows: int) -> BitLinear:
    return BitLinear(columns, rows, generator=torch.Generator().manual_seed(columns + rows))


def _modules() -> dict[str, nn.Module]:
    source = torch.Generator().manual_seed(4)
    found = {
        "bitlinear": _linear(24, 10), "mlgru": MLGRU(MixerInit(24, generator=source)),
        "glu": GLU(MixerInit(24, 40, generator=source)),
        "sequence": nn.Sequential(
            _linear(24, 24), Residual(MLGRU(MixerInit(24, generator=source))),
            Residual(GLU(MixerInit(24, 40, generator=source))),
            Residual(nn.Sequential(
                _linear(24, 30), MLGRU(MixerInit(30, generator=source)), _linear(30, 24))),
            _linear(24, 10))}
    for module in found.values():
        for each in module.modules():
            if isinstance(each, BitLinear) and each.bias is not None:
                nn.init.normal_(each.bias, std=0.5, generator=source)
    return found


def _vectors(profile: NumericProfile) -> np.ndarray:
    """``[time, batch, 24]`` in the format of the residual stream."""
    real = 3 * np.random.default_rng(1).normal(size=(6, 4, 24))
    return np.clip(np.round(real * 2.0 ** profile.x.frac), profile.x.min, profile.x.max).astype(int)


def _float_outputs(module: nn.Module, x: np.ndarray, profile: NumericProfile) -> np.ndarray:
    real = torch.from_numpy(x * 2.0 ** -profile.x.frac).float()
    with torch.no_grad():
        return advance(module, real, initial_states(module, real))[0].double().numpy()


def _decibels(layer: Layer, x: np.ndarray, expected: np.ndarray) -> float:
    y, _ = layer.run(x.transpose(1, 0, 2))
    noise = y.transpose(1, 0, 2) * 2.0 ** -layer.output.frac - expected
    return float(10 * np.log10(np.square(expected).sum() / np.square(noise).sum()))


@pytest.mark.parametrize("profile", [S16, C12])
def test_frames_of_channels_of_any_size_are_as_in_training(profile):
    rng = np.random.default_rng(3)
    frames = torch.from_numpy(
        np.logspace(-3, 3, 7) * (rng.normal(size=(20, 8, 7)) + rng.normal(size=7))).float()
    frames[..., 4] = 5      # one that never changes
    module = nn.Sequential(
        Input(7).fit(frames), _linear(8, 24), Residual(MLGRU(MixerInit(24))), _linear(24, 10))
    scaled = module[0](frames)
    assert scaled[..., :4].std(dim=(0, 1)).log2().abs().max() < 0.51
    assert (scaled[..., 4].unique().tolist(), scaled[..., 7].unique().tolist()) == ([0], [1])
    layer = from_module(module, profile=profile)
    integers = layer.layers[0].integers(frames.numpy())
    with torch.no_grad():
        expected = advance(module, frames, initial_states(module, frames))[0].double().numpy()
    assert _decibels(layer, integers, expected) > _LEAST_DECIBELS[profile.name]


@pytest.mark.parametrize(("frames", "message"), [
    (torch.zeros(3, 5), r"frames must be \[..., 4\], one or more, got \[3, 5\]"),
    (torch.zeros(0, 4), "one or more"), (torch.full((1, 4), torch.nan), "finite"),
])
def test_frames_that_say_nothing_are_refused(frames, message):
    with pytest.raises(ValueError, match=message):
        Input(4).fit(frames)


@pytest.mark.parametrize("name", _modules())
def test_a_module_is_close_in_integers_and_equal_in_onnx(name, profile, tmp_path):
    module = _modules()[name]
    layer = from_module(module, profile=profile)
    x = _vectors(profile)
    expected = _float_outputs(module, x, profile)
    assert _decibels(layer, x, expected) > _LEAST_DECIBELS[profile.name]
    another = from_module(_modules()[name].apply(_negate_one), profile=profile)
    assert _decibels(another, x, expected) < _LEAST_DECIBELS[profile.name]

    session = onnxruntime.InferenceSession(export_layer(layer, tmp_path / "m.onnx"))
    state = layer.start(4)
    for vectors in x:
        feeds = {"x": vectors.astype(np.int32)} | {
            f"state{i}": each.astype(np.int32) for i, each in enumerate(state)}
        y, state = layer.step(vectors, state)
        for got, right in zip(session.run(None, feeds), (y, *state), strict=True):
            np.testing.assert_array_equal(got, right)


def _negate_one(module: nn.Module) -> None:
    """One row of weights the other way round: what the comparison has to notice."""
    if isinstance(module, BitLinear):
        with torch.no_grad():
            module.weight[0] *= -1


def test_the_integers_are_those_of_the_quantised_model():
    model = LanguageModel(ODD, seed=2)
    quantized = quantize(model, S16)
    layer = from_module(model.blocks()[1].mixer)
    for part, projection in layer.projections.items():
        right = quantized.projections[f"layer1.mlgru.{part}"]
        assert (projection.k, projection.shift) == (right.k, right.shift)
        np.testing.assert_array_equal(projection.weight, right.weight)
        np.testing.assert_array_equal(projection.bias, right.bias)


def test_a_residual_around_the_modules_is_a_block_of_the_model_and_learns_as_it():
    model = LanguageModel(ODD, seed=2)
    blocks = nn.Sequential(*(Residual(each) for block in model.blocks()
                             for each in (block.mixer, block.channel)), model.head)
    tokens = torch.arange(10).reshape(5, 2)
    x = model.embedding(tokens).clamp(-S16.x.limit, S16.x.limit)
    expected, last = model.forward_time_major(tokens, model.initial_state(2))
    gradients = [torch.autograd.grad(y.square().sum(), [*model.parameters()])
                 for y in (blocks(x), expected)]
    torch.testing.assert_close(*gradients)
    with torch.no_grad():
        first, states = advance(blocks, x[:2], initial_states(blocks, x))
        rest, states = advance(blocks, x[2:], states)
    torch.testing.assert_close(torch.cat([first, rest]), expected)
    torch.testing.assert_close(states, last)


def _not_finite() -> BitLinear:
    linear = _linear(3, 3)
    with torch.no_grad():
        linear.weight[1, 1] = float("nan")
    return linear


@pytest.mark.parametrize(("module", "message"), [
    (nn.Linear(3, 3), "the module is a Linear; there are layers for BitLinear, MLGRU, GLU, Resid"),
    (nn.Sequential(_linear(3, 3), nn.ReLU()), "module 1 is a ReLU"),
    (nn.Sequential(_linear(3, 3), Residual(nn.Sequential(nn.Tanh()))), "module 1.inner.0 is a T"),
    (nn.Sequential(_linear(3, 4), _linear(3, 4)), "the module: layer 0 gives 4 values, and layer"),
    (nn.Sequential(Residual(_linear(3, 4))), "module 0: a layer with a residual must give as many"),
    (nn.Sequential(), "the module: a sequence of layers needs at least one"),
    (nn.Sequential(Residual(_not_finite())), "module 0.inner: not every weight is finite"),
])
def test_what_cannot_be_converted_is_named_with_its_position(module, message):
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        from_module(module)


def test_the_output_of_a_residual_has_one_format():
    assert from_module(Residual(_linear(3, 3)), output=S16.x).output == S16.x
    with pytest.raises(ValueError, match="the output of a residual has the format"):
        from_module(Residual(_linear(3, 3)), output=FixedPoint(8, 4))
    assert from_module(_linear(3, 3), profile="C12", output=FixedPoint(8, 4)).output.bits == 8


def test_the_weights_alone_are_those_of_training():
    linear = _linear(30, 6)
    matrix = ternary_matrix_of(linear)
    x = torch.randn(1, 30, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = linear(x).numpy()
    q = np.rint(127 * x.numpy() / np.abs(x.numpy()).max())
    by_hand = q / np.sqrt(np.square(q).mean()) @ matrix.weight.T * matrix.scale
    np.testing.assert_allclose(by_hand, expected, rtol=1e-5, atol=1e-6)


def test_real_weights_that_are_ternary_give_their_codes_and_scale():
    codes = np.random.default_rng(0).integers(-1, 2, (9, 20))
    for dtype in (np.float64, np.float32, np.float16):
        matrix = TernaryMatrix.from_float((codes * 0.0371).astype(dtype), bias=np.arange(9))
        np.testing.assert_array_equal(matrix.weight, codes)
        assert matrix.scale == pytest.approx(0.0371, rel=1e-3)
    nothing = TernaryMatrix.from_float(np.zeros((2, 3)))
    assert (nothing.scale, nothing.weight.any()) == (1.0, False)


@pytest.mark.parametrize(("weights", "message"), [
    ([[1.0, -0.5, 0.0]], r"not ternary: with the scale 1 one is off by 0\.5 of it"),
    ([[1.0, 0.9]], r"not ternary: with the scale 0\.95 one is off by 0\.053 of it"),
    ([[1.0, 0.01]], r"off by 0\.01 of it, at most 0\.001 is allowed"),
    ([[np.inf, 0.0]], "every weight must be finite"),
    ([1.0, 0.0], r"weight must be a matrix \[rows, columns\]"),
])
def test_real_weights_that_are_not_ternary_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        TernaryMatrix.from_float(weights)


def test_weights_of_brevitas():
    with pytest.raises(ValueError, match=r"expected a brevitas\.nn\.QuantLinear .* got a Linear"):
        from_brevitas(nn.Linear(3, 3))
    nn_of_brevitas = pytest.importorskip("brevitas.nn")
    from brevitas.quant import (
        Int8WeightPerChannelFloat,
        Int8WeightPerTensorFloat,
        SignedTernaryWeightPerTensorConst,
    )
    torch.manual_seed(1)
    layer = nn_of_brevitas.QuantLinear(
        40, 7, bias=True, weight_quant=SignedTernaryWeightPerTensorConst)
    matrix = from_brevitas(layer)
    assert set(np.unique(matrix.weight)) == {-1, 0, 1}
    # Ones for activations, of which Brevitas rounds none: its own output by our numbers.
    acts = np.random.default_rng(0).integers(-128, 128, (5, 40))
    with torch.no_grad():
        expected = layer(torch.from_numpy(acts).float()).numpy()
    np.testing.assert_allclose(
        acts @ matrix.weight.T * matrix.scale + matrix.bias, expected, rtol=1e-5, atol=1e-5)
    for quantizer, message in ((Int8WeightPerTensorFloat, "every weight must be -1, 0 or 1"),
                               (Int8WeightPerChannelFloat, "one scale .* is possible, got 3 for"),
                               (None, "the weights of the QuantLinear are not quantised")):
        with pytest.raises(ValueError, match=message):
            from_brevitas(nn_of_brevitas.QuantLinear(4, 3, bias=False, weight_quant=quantizer))


def test_a_module_that_comes_twice_is_two_layers_with_a_state_each():
    linear, mlgru = _linear(6, 6), MLGRU(MixerInit(6, generator=torch.Generator().manual_seed(2)))
    assert len(from_module(nn.Sequential(linear, linear)).layers) == 2
    module = nn.Sequential(Residual(mlgru), Residual(mlgru))
    x = torch.randn(3, 2, 6, generator=torch.Generator().manual_seed(3))
    states = initial_states(module, x)
    assert [tuple(h.shape) for (h,) in states] == [(2, 6), (2, 6)]
    once, (first,) = advance(module[0], x, states[:1])
    twice, after = advance(module, x, states)
    assert torch.equal(after[0][0], first[0])
    assert torch.equal(twice, advance(module[1], once, states[1:])[0])
    assert from_module(module).states == (6, 6)
