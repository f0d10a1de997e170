"""Keras-MML's layers (keras-matmulless 0.1.2): against its formulas, and against the package if it
is installed (with Keras on torch). Everything in float64.

The package pins NumPy below 2, so it is in no extra: have it in an environment of its own.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mixer_parts import assert_same, normal, run
from torch import Tensor, nn

from sterna.model.config import ModelConfig
from sterna.model.mixers.channel import GLUMML
from sterna.model.mixers.recurrent import GRUMML, LRU, AttentionMML
from sterna.model.network.bitlinear import BitLinear
from sterna.model.network.dense_mml import ACTIVATIONS, DenseMML
from sterna.model.network.projection import MixerInit
from sterna.model.network.quantizers import ternary_codes
from sterna.model.network.recurrence import naive_mlgru
from sterna.model.stack.block import Block
from sterna.model.stack.language_model import LanguageModel

D, DFF, STATES, TIME, BATCH = 16, 32, 8, 7, 3
X = normal(TIME, BATCH, D, seed=2)
MODES = pytest.mark.parametrize("fully_mml", [True, False], ids=["fully", "partly"])


def init() -> MixerInit:
    return MixerInit(D, DFF, True, torch.Generator().manual_seed(1))


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
    assert isinstance(layer, nn.Linear)
    return F.linear(x, layer.weight, layer.bias)


def is_formula(module: nn.Module, ours: Callable[..., Tensor], formula: Callable[..., Tensor],
               *inputs: Tensor, within: float = 1e-9) -> None:
    """Values, and gradients of the inputs and of all that is no ternary weight."""
    assert_same(ours, formula, inputs, [
        parameter for name, parameter in module.named_parameters()
        if not name.endswith("linear.weight")], within=within)


# DenseMML

def test_dense_mml_is_its_formula() -> None:
    layer = shaken(DenseMML(D, 8, activation="silu"))
    is_formula(layer, layer, lambda x: F.silu(dense(layer, x)), normal(5, D, seed=2), within=1e-12)


def test_gradient_of_dense_mmls_weights_differs_from_the_packages_as_stated() -> None:
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


def test_gain_of_dense_mml_says_something_where_a_bitlinear_would_not() -> None:
    """The norm comes before the gain, and quantisation keeps the size of what comes."""
    layer, x = shaken(DenseMML(D, 8, bias=False)), normal(5, D, seed=2)
    bit = BitLinear(D, 8, bias=False).double()
    with torch.no_grad():
        bit.weight.copy_(layer.linear.weight)
        once = layer(x)
        torch.testing.assert_close(layer(5 * x), once, rtol=1e-12, atol=1e-12)
        plain = bit(layer.gain * x)
        layer.gain.mul_(2)
        torch.testing.assert_close(layer(x), 2 * once, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(bit(layer.gain * x), plain, rtol=1e-12, atol=1e-12)
        # With gains of one they differ by the size of the rounded vector only, near one.
        layer.gain.fill_(1)
        ratio = layer(x) / bit(x)
        torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio), rtol=1e-9, atol=0)
        assert 1e-9 < float((ratio - 1).abs().max()) < 0.01


def test_dense_mml_of_zeros_is_its_bias() -> None:
    layer = shaken(DenseMML(D, 8))
    assert torch.equal(layer(torch.zeros(2, D).double()), layer.linear.bias.expand(2, 8))


# The blocks, by the formulas

@pytest.mark.parametrize("activation", ["sigmoid", "linear", "relu", "gelu", "silu", "selu"])
def test_glumml_is_its_formula(activation: str) -> None:
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
def test_grumml_is_its_formula(fully_mml: bool) -> None:
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


def test_attentionmml_is_a_grumml_with_silu_and_sigmoid() -> None:
    mixer, twin = shaken(AttentionMML(init())), shaken(GRUMML(init(), fully_mml=True))
    assert (mixer.activation, mixer.recurrent_activation) == (F.silu, torch.sigmoid)
    state = normal(BATCH, D, seed=3)
    assert torch.equal(mixer(X, (state,))[0], twin(X, (state,))[0])


@MODES
def test_lrumml_is_its_formula(fully_mml: bool) -> None:
    mixer = shaken(LRU(init(), state_dim=STATES, fully_mml=fully_mml))
    assert isinstance(mixer.b_re, DenseMML)
    assert isinstance(mixer.direct, DenseMML if fully_mml else nn.Linear)

    def formula(u: Tensor) -> Tensor:
        added = torch.exp(mixer.gamma) * torch.complex(dense(mixer.b_re, u), dense(mixer.b_im, u))
        multiplier = torch.exp(torch.complex(-mixer.nu.exp(), mixer.theta.exp()))
        x, states = torch.zeros_like(added[0]), []
        for t in range(TIME):
            x = multiplier * x + added[t]
            states.append(x)
        whole = torch.stack(states)
        seen = dense(mixer.c_re, whole.real) - dense(mixer.c_im, whole.imag)
        return seen + dense(mixer.direct, u)

    is_formula(mixer, lambda u: run(mixer, u), formula, X)


@pytest.mark.parametrize("mixer", ["grumml", "lru(fully_mml=false)"])
def test_floats_that_read_the_stream_get_it_normalised(mixer: str) -> None:
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
def test_a_post_norm_block_is_transformer_block_mml(channel: str) -> None:
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
def keras_mml() -> Iterator[Any]:
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


def give(layer: Any, ours: nn.Module) -> None:
    """Hand our numbers to a DenseMML or Dense of the package."""
    if isinstance(ours, DenseMML):
        gain = layer._activation_norm._gain
        gain.assign(np.broadcast_to(ours.gain.detach().numpy(), gain.shape))
        layer._kernel.assign(ours.linear.weight.detach().numpy().T)
        bias, to = ours.linear.bias, layer._bias
    else:
        assert isinstance(ours, nn.Linear)
        layer.kernel.assign(ours.weight.detach().numpy().T)
        bias, to = ours.bias, layer.bias
    if bias is not None:
        to.assign(bias.detach().numpy())


def give_grumml(layer: Any, ours: GRUMML) -> None:
    give(layer.cell._kernel, ours.kernel)
    give(layer.cell._o_gate, ours.out)
    if ours.g is not None:
        give(layer.cell._g_gate, ours.g)


def compare(layer: Any, ours: Callable[[Tensor], Tensor], fill: Callable[[Any], None],
            within: float = 1e-10) -> None:
    """Layer and ours on ``X [time, batch, d]``; the package wants the batch first.

    From Keras 3.13 on a product of float64 matrices is one of float32; a code that rounds the other
    way would be far beyond what that explains.
    """
    batched = X.transpose(0, 1).contiguous()
    layer.build(tuple(batched.shape))
    fill(layer)
    with torch.no_grad():
        theirs, got = layer(batched).transpose(0, 1), ours(X)
    assert theirs.shape == got.shape
    largest = float(got.abs().max())
    allowed = within if exact() else max(within, 1e-6 * largest)
    difference = float((theirs - got).abs().max())
    assert difference < allowed, f"{type(layer).__name__}: {difference:.1e} of {largest:.1f}"


def exact() -> bool:
    """Whether this Keras multiplies matrices in float64."""
    ops, one = pytest.importorskip("keras").ops, torch.ones(1, 1, dtype=torch.float64)
    return bool(ops.matmul(one, one).dtype == torch.float64)


def test_package_dense(keras_mml: Any) -> None:
    ours = shaken(DenseMML(D, 8, activation="relu"))
    layer = keras_mml.DenseMML(8, activation="relu")
    compare(layer, ours, lambda layer: give(layer, ours), 1e-12)
    toward = normal(TIME, BATCH, 8, seed=3)
    (layer(X.transpose(0, 1)).transpose(0, 1) * toward).sum().backward()
    (package_dense(X, ours.linear.weight, ours.gain, ours.linear.bias).relu()
     * toward).sum().backward()
    within = 1e-10 if exact() else 1e-5
    torch.testing.assert_close(layer._kernel.value.grad.T, ours.linear.weight.grad,
                               rtol=within, atol=within, check_dtype=False)


@pytest.mark.parametrize(("name", "activation"), [
    ("GLUMML", "sigmoid"), ("BilinearMML", "linear"), ("ReGLUMML", "relu"),
    ("GeGLUMML", "gelu"), ("SwiGLUMML", "silu"), ("SeGLUMML", "selu")])
def test_package_glu_family(keras_mml: Any, name: str, activation: str) -> None:
    ours = shaken(GLUMML(init(), activation=activation))

    def fill(layer: Any) -> None:
        give(layer._gate_dense, ours.kernel)
        give(layer._down_dense, ours.down)

    compare(getattr(keras_mml, name)(D, intermediate_size=DFF), ours, fill)


@MODES
@pytest.mark.parametrize("heads", [1, 4])
def test_package_recurrences(keras_mml: Any, fully_mml: bool, heads: int) -> None:
    for ours, layer, cell in (
            (GRUMML(init(), fully_mml=fully_mml),
             keras_mml.GRUMML(D, fully_mml=fully_mml, num_heads=heads, return_sequences=True),
             lambda layer: layer),
            (AttentionMML(init(), fully_mml=fully_mml),
             keras_mml.AttentionMML(heads, D, fully_mml=fully_mml),
             lambda layer: layer._internal_layer)):
        shaken(ours)
        compare(layer, lambda x, ours=ours: run(ours, x),
                lambda layer, ours=ours, cell=cell: give_grumml(cell(layer), ours))


@MODES
def test_package_lrumml(keras_mml: Any, fully_mml: bool) -> None:
    ours = shaken(LRU(init(), state_dim=STATES, fully_mml=fully_mml))

    def fill(layer: Any) -> None:
        cell = layer.cell
        for at, value in (("nu", ours.nu), ("theta", ours.theta), ("gamma", ours.gamma)):
            getattr(cell, f"_{at}_log").assign(value.detach().numpy())
        for theirs, layer_of_ours in (
                (cell._b_gate_re, ours.b_re), (cell._b_gate_im, ours.b_im),
                (cell._c_gate_re, ours.c_re), (cell._c_gate_im, ours.c_im),
                (cell._d_gate, ours.direct)):
            give(theirs, layer_of_ours)

    compare(keras_mml.LRUMML(D, STATES, fully_mml=fully_mml, return_sequences=True),
            lambda x: run(ours, x), fill)


def test_package_transformer_block(keras_mml: Any) -> None:
    ours = transformer_block("glumml(activation=silu)")

    def fill(layer: Any) -> None:
        give_grumml(layer._attention_layer._internal_layer, ours.mixer)
        give(layer._ffn_layer._gate_dense, ours.channel.kernel)
        give(layer._ffn_layer._down_dense, ours.channel.down)
        for norm, own in ((layer._attention_norm, ours.norms[0]),
                          (layer._ffn_norm, ours.norms[1])):
            norm._gain.assign(np.broadcast_to(own.weight.detach().numpy(), norm._gain.shape))

    for eps, within in ((0.0, 1e-10), (1e-6, 1e-4)):    # as the package has it, as blocks are made
        for norm in ours.norms:
            norm.eps = eps
        compare(keras_mml.TransformerBlockMML(D, DFF, 2),
                lambda x: ours(x, ours.mixer.initial_state(x))[0], fill, within)
