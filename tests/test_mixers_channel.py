"""Each channel mixer against its formula with torch's functions; GLUMML is in test_keras_mml.py."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from mixer_parts import DFF, KINDS, D, assert_same, init, normal, through
from torch import Tensor, nn

from sterna.model.network.dense_mml import ACTIVATIONS, activation_named
from sterna.model.network.mixer import ChannelMixer
from sterna.model.network.registry import CHANNEL_MIXERS
from sterna.model.pattern import Choice
from sterna.model.profile import S16
from sterna.model.stack.convert import from_module

GATED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "bilinear": lambda gate, up: gate * up,
    "sigmoid_glu": lambda gate, up: F.glu(torch.cat([up, gate], dim=-1)),   # torch's own GLU
    "reglu": lambda gate, up: gate.clamp_min(0) * up,
    "geglu": lambda gate, up: gate * 0.5 * (1 + torch.erf(gate / math.sqrt(2))) * up,
    "glu": lambda gate, up: nn.SiLU()(gate) * up,
    "swiglu": lambda gate, up: gate / (1 + torch.exp(-gate)) * up,
    "seglu": lambda gate, up: nn.SELU()(gate) * up,
    "relu2_glu": lambda gate, up: gate.clamp_min(0) ** 2 * up,
}
PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "mlp": nn.GELU(approximate="none"), "relu2": lambda up: up * up * (up > 0)}
PRODUCTS = dict.fromkeys([*GATED, "relu2"], DFF) | {"relu2_glu": 2 * DFF, "mlp": 0}


def built_channel(name: str, *, ternary: bool) -> ChannelMixer:
    mixer = CHANNEL_MIXERS.build(Choice(name), init(ternary=ternary)).double()
    with torch.no_grad():
        for at, parameter in enumerate(mixer.parameters()):
            # Biases so large that some channels are beyond the limits of ternary mixers.
            scale = 0.7 if parameter.dim() > 1 else 5.0
            parameter.copy_(scale * normal(*parameter.shape, seed=100 + at))
    return mixer


@KINDS
@pytest.mark.parametrize("name", [*GATED, *PLAIN])
def test_a_channel_mixer_is_its_formula_and_saturated_values_pass_no_gradient(name, ternary):
    mixer, reached = built_channel(name, ternary=ternary), []
    z, p = (S16.z.limit, S16.p.limit) if ternary else (math.inf, math.inf)

    def formula(x: Tensor) -> Tensor:
        layers = mixer.gate_up.values() if name in GATED else [mixer.up]
        parts = [through(each, x).clamp(-z, z) for each in layers]
        hidden = (GATED if name in GATED else PLAIN)[name](*parts)
        reached.append(max(float(each.detach().abs().max()) for each in parts))
        return through(mixer.down, hidden.clamp(-p, p))

    assert_same(mixer, formula, normal(5, 3, D, seed=2), mixer.parameters())
    assert (reached[0] == S16.z.limit) == ternary
    assert mixer.products(1) == PRODUCTS[name]


def test_every_channel_mixer_of_the_package_has_its_formula_here():
    own = {name for name in CHANNEL_MIXERS.names()
           if CHANNEL_MIXERS.find(name).__module__.startswith("sterna.model.mixers")}
    assert own == {*GATED, *PLAIN, "glumml"}


def test_only_the_glu_with_silu_becomes_a_layer_of_integers():
    assert from_module(built_channel("glu", ternary=True)) is not None
    with pytest.raises(ValueError, match="is a ReGLU; there are layers for"):
        from_module(built_channel("reglu", ternary=True))


def test_activations_are_found_by_name():
    x = normal(20, seed=4)
    modules = {"linear": nn.Identity(), "sigmoid": nn.Sigmoid(), "tanh": nn.Tanh(),
               "relu": nn.ReLU(), "gelu": nn.GELU(), "silu": nn.SiLU(), "selu": nn.SELU()}
    assert ACTIVATIONS.keys() == modules.keys()
    for name, module in modules.items():
        assert torch.equal(activation_named(name)(x), module(x))
    with pytest.raises(ValueError, match="no activation is called 'relus'; did you mean relu"):
        activation_named("relus")
    with pytest.raises(ValueError, match="known are linear, sigmoid"):
        activation_named("xyz")
