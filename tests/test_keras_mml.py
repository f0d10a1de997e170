"""Keras-MML's layers (keras-matmulless 0.1.2): against its formulas, and against the package if it
is installed (with Keras on torch). Everything in float64.

The package pins NumPy below 2, so it is in no extra: have it in an environment of its own.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mixer_parts import assert_same, normal
from torch import Tensor, nn

from sterna.model.config import ModelConfig
from sterna.model.hub.keras import from_keras
from sterna.model.torch.mixers.channel import GLUMML
from sterna.model.torch.mixers.recurrent import GRUMML, LRU, AttentionMML
from sterna.model.torch.network.dense_mml import ACTIVATIONS, DenseMML
from sterna.model.torch.network.projection import MixerInit
from sterna.model.torch.network.quantizers import ternary_codes
from sterna.model.torch.network.recurrence import naive_mlgru
from sterna.model.torch.stack.block import Block
from sterna.model.torch.stack.language_model import LanguageModel

D, DFF, STATES, TIME, BATCH = 16, 32, 8, 7, 3
X = normal(TIME, BATCH, D, seed=2)
MODES = pytest.mark.parametrize("fully_mml", [True, False], ids=["fully", "partly"])


def init(ternary: bool = True) -> MixerInit:
    return MixerInit(D, DFF, ternary, torch.Generator().manual_seed(1))


def shaken(module: nn.Module) -> Any:
    """The module in float64, its parameters drawn anew: whole multiples of 1/64, those of a matrix
    with such a mean, so that both sides find the same ternary scale to the last bit although one
    adds in float32."""
    module.double()
    with torch.no_grad():
        for at, (name, parameter) in enumerate(module.named_parameters()):
            drawn = (32 * normal(*parameter.shape, seed=100 + at)).round()
            lacking = int(-drawn.abs().sum() % drawn.numel())
            drawn.view(-1)[:lacking] += torch.where(drawn.view(-1)[:lacking] < 0, -1, 1)
            parameter.copy_(1 + drawn / 128 if name.endswith("gain") else drawn / 64)
    return module


def package_dense(x: Tensor, weight: Tensor, gain: Tensor, bias: Tensor | None) -> Tensor:
    """``DenseMML.call`` with the straight-through terms where the package has them: at the codes,
    not at the weights, and not at the scale."""
    normalised = x / x.norm(dim=-1, keepdim=True) * math.sqrt(x.shape[-1]) * gain
    scale = 127 / normalised.abs().amax(-1, keepdim=True).clamp_min(1e-5)
    rounded = torch.clip(torch.round(normalised * scale), -128, 127) / scale
    quantised = normalised + (rounded - normalised).detach()
    unit = weight.abs().mean().clamp_min(1e-5)
    codes = weight + (torch.clip(torch.round(weight / unit), -1, 1) - weight).detach()
    y = quantised @ codes.T * unit
    return y if bias is None else y + bias


def dense(layer: nn.Module, x: Tensor) -> Tensor:
    """A layer of a mixer by the formula: DenseMML, or Dense where it is float."""
    if isinstance(layer, DenseMML):
        return package_dense(x, layer.linear.weight, layer.gain, layer.linear.bias)
    return F.linear(x, layer.weight, layer.bias)


def is_formula(module: nn.Module, ours: Callable[..., Tensor], formula: Callable[..., Tensor],
               *inputs: Tensor, within: float = 1e-9) -> None:
    """Values, and gradients of the inputs and of all that is no ternary weight."""
    assert_same(ours, formula, inputs, [
        parameter for name, parameter in module.named_parameters()
        if not name.endswith("linear.weight")], within=within)


def test_dense_mml_is_its_formula():
    layer = shaken(DenseMML(D, 8))
    is_formula(layer, layer, lambda x: dense(layer, x), normal(5, D, seed=2), within=1e-12)


def test_gradient_of_dense_mmls_weights_differs_from_the_packages_as_stated():
    """The package trains through codes and scale: s * g + sign(W) * sum(g * T) / n for our g."""
    layer = shaken(DenseMML(D, 8))
    weight, x, toward = layer.linear.weight, normal(5, D, seed=2), normal(5, 8, seed=3)
    (ours,) = torch.autograd.grad((layer(x) * toward).sum(), weight)
    (theirs,) = torch.autograd.grad((dense(layer, x) * toward).sum(), weight)
    codes, scale = ternary_codes(weight)
    leak = weight.sign() * (ours * codes).sum() / weight.numel()
    torch.testing.assert_close(theirs, scale * ours + leak, rtol=1e-12, atol=1e-12)
    assert float(leak.detach().abs().max()) > 1e-3
    assert not torch.allclose(theirs, ours)


def test_gain_of_dense_mml_says_something_where_a_bitlinear_would_not():
    """The norm comes before the gain, and quantisation keeps the size of what comes."""
    layer, x = shaken(DenseMML(D, 8, bias=False)), normal(5, D, seed=2)
    with torch.no_grad():
        once = layer(x)
        torch.testing.assert_close(layer(5 * x), once, rtol=1e-12, atol=1e-12)
        layer.gain.mul_(2)
        torch.testing.assert_close(layer(x), 2 * once, rtol=1e-12, atol=1e-12)
        assert not layer(torch.zeros(2, D).double()).any()


@pytest.mark.parametrize("activation", ["sigmoid", "linear", "relu", "gelu", "silu", "selu"])
def test_glumml_is_its_formula(activation):
    mixer = shaken(GLUMML(init(), activation=activation))

    def formula(x: Tensor) -> Tensor:
        gate, up = dense(mixer.kernel, x).split(DFF, dim=-1)
        return dense(mixer.down, ACTIVATIONS[activation](gate) * up)

    is_formula(mixer, mixer, formula, normal(5, D, seed=2))


def grumml_formula(mixer: GRUMML, x: Tensor, state: Tensor) -> Tensor:
    parts = dense(mixer.kernel, x)
    if mixer.g is not None:
        parts = torch.cat([parts, dense(mixer.g, x)], dim=-1)
    f, c, g = parts.split(D, dim=-1)
    h = naive_mlgru(mixer.recurrent_activation(f), mixer.activation(c), state)
    return dense(mixer.out, mixer.recurrent_activation(g) * h)


@MODES
def test_grumml_is_its_formula(fully_mml):
    mixer = shaken(GRUMML(init(), fully_mml=fully_mml, activation="tanh",
                          recurrent_activation="gelu"))
    assert (mixer.activation, mixer.recurrent_activation) == (torch.tanh, F.gelu)
    assert all(f"{part}.bias" in dict(mixer.named_parameters()) for part in (
        ("kernel.linear", "out.linear") if fully_mml else ("kernel.linear", "g", "out")))
    assert isinstance(mixer.out, DenseMML if fully_mml else nn.Linear)
    is_formula(mixer, lambda x, state: mixer(x, (state,))[0],
               lambda x, state: grumml_formula(mixer, x, state), X, normal(BATCH, D, seed=3))
    assert mixer.macs(1) == (4 if fully_mml else 2) * D * D
    assert mixer.multiplies(1) == 3 * D + (0 if fully_mml else 2 * D * D)


def test_attentionmml_is_a_grumml_with_silu_and_sigmoid():
    mixer, twin = shaken(AttentionMML(init())), shaken(GRUMML(init(), fully_mml=True))
    assert (mixer.activation, mixer.recurrent_activation) == (F.silu, torch.sigmoid)
    state = normal(BATCH, D, seed=3)
    assert torch.equal(mixer(X, (state,))[0], twin(X, (state,))[0])


@pytest.mark.parametrize(("ternary", "fully_mml"), [(True, True), (True, False), (False, True)])
def test_lru_is_its_formula_in_complex_numbers(ternary, fully_mml):
    mixer = shaken(LRU(init(ternary), state_dim=STATES, fully_mml=fully_mml))
    assert isinstance(mixer.b_re, DenseMML if ternary else nn.Linear)
    assert isinstance(mixer.direct, DenseMML if ternary and fully_mml else nn.Linear)

    def formula(u: Tensor, re: Tensor, im: Tensor) -> tuple[Tensor, ...]:
        added = torch.exp(mixer.gamma) * torch.complex(dense(mixer.b_re, u), dense(mixer.b_im, u))
        multiplier = torch.exp(torch.complex(-mixer.nu.exp(), mixer.theta.exp()))
        x, states = torch.complex(re, im), []
        for each in added:
            x = multiplier * x + each
            states.append(x)
        whole = torch.stack(states)
        seen = dense(mixer.c_re, whole.real) - dense(mixer.c_im, whole.imag)
        return seen + dense(mixer.direct, u), x.real, x.imag

    def ours(u: Tensor, re: Tensor, im: Tensor) -> tuple[Tensor, ...]:
        y, last = mixer(u, (re, im))
        return y, *last

    states = (normal(BATCH, STATES, seed=at) for at in (3, 4))
    is_formula(mixer, ours, formula, X, *states)


@pytest.mark.parametrize("mixer", ["grumml", "lru(fully_mml=false)"])
def test_floats_that_read_the_stream_get_it_normalised(mixer):
    model = LanguageModel(ModelConfig(d=D, layers=1, dff=DFF, mixer=mixer))
    assert isinstance(model.blocks()[0].norms[0], nn.RMSNorm)
    fully = LanguageModel(ModelConfig(d=D, layers=1, dff=DFF, mixer="attentionmml"))
    assert isinstance(fully.blocks()[0].norms[0], nn.Identity)


def transformer_block(channel: str) -> Block:
    """The block that TransformerBlockMML is; its norms without the small number under the root,
    which the package does not have."""
    config = ModelConfig(d=D, layers=1, dff=DFF, mixer="attentionmml", channel=channel,
                         norm="post")
    (token, channel_choice), = config.mixers()
    block = shaken(Block(config, token, channel_choice, init()))
    for at, norm in enumerate(block.norms):
        norm.eps = 0.0
        with torch.no_grad():
            norm.weight.copy_(1 + 0.1 * normal(D, seed=50 + at))
    return block


@pytest.mark.parametrize("channel", ["glumml(activation=silu)", "swiglu"])
def test_a_post_norm_block_is_transformer_block_mml(channel):
    """``a = RMSNorm(x + Attn(x))``, ``y = RMSNorm(a + SwiGLU(a))``."""
    block = transformer_block(channel)

    def rms_norm(v: Tensor, gain: Tensor) -> Tensor:
        return v / v.norm(dim=-1, keepdim=True) * math.sqrt(D) * gain

    def formula(x: Tensor) -> Tensor:
        state = torch.zeros(BATCH, D, dtype=x.dtype)
        a = rms_norm(x + grumml_formula(block.mixer, x, state), block.norms[0].weight)
        return rms_norm(a + block.channel(a), block.norms[1].weight)

    assert_same(lambda x: block(x, block.mixer.initial_state(x))[0], formula, X, within=1e-8)


# The package itself

@pytest.fixture(scope="module")
def keras_mml():
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("KERAS_BACKEND", "torch")
        patch.setenv("DISABLE_TORCH_COMPILE", "1")   # the package compiles every quantiser
        layers = pytest.importorskip("keras_mml.layers")
        keras = pytest.importorskip("keras")
        if keras.backend.backend() != "torch":
            pytest.skip("Keras was imported with another backend")
        before = keras.config.floatx()
        keras.config.set_floatx("float64")
        yield SimpleNamespace(**{   # its layers are in folders by kind, with one name each
            name: getattr(folder, name) for folder in vars(layers).values()
            for name in getattr(folder, "__all__", ())})
        keras.config.set_floatx(before)


def exact() -> bool:
    """Whether this Keras multiplies matrices in float64: from 3.13 on it does so in float32."""
    ops, one = pytest.importorskip("keras").ops, torch.ones(1, 1, dtype=torch.float64)
    return bool(ops.matmul(one, one).dtype == torch.float64)


def give(layer: Any, ours: Any) -> None:
    """Hand our numbers to a DenseMML, Dense, norm or variable of the package."""
    if isinstance(ours, nn.RMSNorm):
        given = [(layer._gain, ours.weight)]
    elif isinstance(ours, DenseMML):
        given = [(layer._activation_norm._gain, ours.gain), (layer._kernel, ours.linear.weight.T),
                 (layer._bias, ours.linear.bias)]
    elif isinstance(ours, nn.Linear):
        given = [(layer.kernel, ours.weight.T), (layer.bias, ours.bias)]
    else:
        given = [(layer, ours)]
    for variable, values in given:
        if values is not None:
            variable.assign(np.broadcast_to(values.detach().numpy(), variable.shape))


GRU_PARTS = {"kernel": "cell._kernel", "out": "cell._o_gate", "g": "cell._g_gate"}
ATTENTION_PARTS = {ours: f"_internal_layer.{theirs}" for ours, theirs in GRU_PARTS.items()}
GLU_PARTS = {"kernel": "_gate_dense", "down": "_down_dense"}
LRU_PARTS = {
    **{name: f"cell._{name}_log" for name in ("nu", "theta", "gamma")}, "direct": "cell._d_gate",
    **{f"{name}_{part}": f"cell._{name}_gate_{part}" for name in "bc" for part in ("re", "im")}}
BLOCK_PARTS = {
    **{f"mixer.{ours}": f"_attention_layer.{theirs}" for ours, theirs in ATTENTION_PARTS.items()},
    **{f"channel.{ours}": f"_ffn_layer.{theirs}" for ours, theirs in GLU_PARTS.items()},
    "norms.0": "_attention_norm", "norms.1": "_ffn_norm"}
"""Where our parts are in the layers of the package."""


def compare(layer: Any, ours: Any, parts: dict[str, str], within: float = 1e-10) -> None:
    """Layer and ours on ``X [time, batch, d]``; the package wants the batch first. A code that
    rounds the other way would be far beyond what products in float32 explain."""
    batched = X.transpose(0, 1).contiguous()
    layer.build(tuple(batched.shape))
    for own, theirs in parts.items():
        if (part := attrgetter(own)(ours)) is not None:     # a GRUMML may have no g
            give(attrgetter(theirs)(layer), part)
    if not parts:
        give(layer, ours)
    mixer = getattr(ours, "mixer", ours)
    with torch.no_grad():
        found = layer(batched).transpose(0, 1)
        got = ours(X, mixer.initial_state(X))[0] if hasattr(mixer, "initial_state") else ours(X)
    assert found.shape == got.shape
    largest = float(got.abs().max())
    difference = float((found - got).abs().max())
    assert difference < (within if exact() else max(within, 1e-6 * largest)), (
        f"{type(layer).__name__}: {difference:.1e} of {largest:.1f}")


def test_package_dense(keras_mml):
    ours, layer = shaken(DenseMML(D, 8)), keras_mml.DenseMML(8)
    compare(layer, ours, {}, 1e-12)
    toward = normal(TIME, BATCH, 8, seed=3)
    (layer(X.transpose(0, 1)).transpose(0, 1) * toward).sum().backward()
    (dense(ours, X) * toward).sum().backward()
    within = 1e-10 if exact() else 1e-5
    torch.testing.assert_close(layer._kernel.value.grad.T, ours.linear.weight.grad,
                               rtol=within, atol=within, check_dtype=False)


@pytest.mark.parametrize(("name", "activation"), [
    ("GLUMML", "sigmoid"), ("BilinearMML", "linear"), ("ReGLUMML", "relu"),
    ("GeGLUMML", "gelu"), ("SwiGLUMML", "silu"), ("SeGLUMML", "selu")])
def test_package_glu_family(keras_mml, name, activation):
    compare(getattr(keras_mml, name)(D, intermediate_size=DFF),
            shaken(GLUMML(init(), activation=activation)), GLU_PARTS)


@MODES
def test_package_recurrences(keras_mml, fully_mml):
    options = {"fully_mml": fully_mml, "return_sequences": True}
    for heads in (1, 4):
        compare(keras_mml.GRUMML(D, num_heads=heads, **options),
                shaken(GRUMML(init(), fully_mml=fully_mml)), GRU_PARTS)
        compare(keras_mml.AttentionMML(heads, D, fully_mml=fully_mml),
                shaken(AttentionMML(init(), fully_mml=fully_mml)), ATTENTION_PARTS)
    compare(keras_mml.LRUMML(D, STATES, **options),
            shaken(LRU(init(), state_dim=STATES, fully_mml=fully_mml)), LRU_PARTS)


def test_package_transformer_block(keras_mml):
    ours = transformer_block("glumml(activation=silu)")
    for eps, within in ((0.0, 1e-10), (1e-6, 1e-4)):    # as the package has it, as blocks are made
        for norm in ours.norms:
            norm.eps = eps
        compare(keras_mml.TransformerBlockMML(D, DFF, 2), ours, BLOCK_PARTS, within)


# Its matrices as ours ----------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:__array__ implementation")     # as the package saves
@pytest.mark.parametrize("bias", [True, False])
def test_the_matrix_of_a_package_dense(keras_mml, bias, tmp_path):
    keras = pytest.importorskip("keras")
    layer = keras_mml.DenseMML(8, use_bias=bias, bias_initializer="random_normal")
    model = keras.Sequential([keras.Input((TIME, D)), layer])
    x = X.transpose(0, 1)
    path = tmp_path / "m.keras"
    model.save(path)
    for each in (layer, keras.models.load_model(path).layers[0]):
        matrix = from_keras(each)
        with torch.no_grad():
            normalised = each._activation_norm(x).numpy()
            expected = each(x).numpy()
        scale = 127 / np.abs(normalised).max(-1, keepdims=True)
        products = np.rint(normalised * scale) / scale @ (matrix.weight.T * matrix.scale)
        np.testing.assert_allclose(
            products + (0 if matrix.bias is None else matrix.bias), expected, atol=1e-5)
        assert (matrix.bias is not None) is bias


def test_no_matrix_of_another_layer():
    with pytest.raises(ValueError, match=r"a keras_mml\.layers\.DenseMML .*, got a Linear"):
        from_keras(nn.Linear(2, 2))
