"""Every value with a format in integers goes through one place of the float model, and a model that
is trained for a profile computes what its integers compute, nearly."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from sterna.model.config import ModelConfig
from sterna.model.profile import C12, PROFILES, S16, FixedPoint, NumericProfile
from sterna.model.quantized.fixed import to_fixed
from sterna.model.quantized.integer import IntegerModel, sigmoid
from sterna.model.torch.network.bitlinear import BitLinear
from sterna.model.torch.network.numerics import (
    Formats,
    Limits,
    Numerics,
    numerics_for,
    round_to,
    rounded_sigmoid,
)
from sterna.model.torch.network.recurrence import scan_sequential
from sterna.model.torch.stack.convert import Residual
from sterna.model.torch.stack.language_model import Classifier, LanguageModel
from sterna.model.torch.training.quantize import quantize

CONFIG = ModelConfig(d=24, layers=2, dff=40, vocab=40)
FINE = dataclasses.replace(
    C12, reciprocal_bits=24, root_frac=8, scale_frac=20, mantissa_bits=20, scale_bits=20)
"""C12 with a norm so fine that what has no place in the float model makes no difference."""
NARROW = dataclasses.replace(S16, x=FixedPoint(16, 13), p=FixedPoint(16, 12))
"""Residual streams up to 4, GLU products up to 8."""


def shaken(seed: int, profile: NumericProfile = C12) -> LanguageModel:
    """A model whose values reach its limits."""
    model = LanguageModel(CONFIG, seed=seed, profile=profile)
    with torch.no_grad():
        for at, parameter in enumerate(model.parameters()):
            parameter.add_(torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(100 * seed + at)) * 0.3)
    return model


def put(model: LanguageModel, numerics: Numerics) -> None:
    for each in model.modules():
        if isinstance(getattr(each, "numerics", None), Numerics):
            each.numerics = numerics
        if isinstance(each, BitLinear):
            each._round_bias = partial(numerics.bias, **each._round_bias.keywords)


class Counting(Limits):
    def __init__(self) -> None:
        super().__init__(S16)
        self.seen: Counter[str] = Counter()
        for name in ("x", "z", "sigmoid", "silu", "h", "o", "p", "logit"):
            setattr(self, name, self.counted(name))

    def counted(self, name: str) -> object:
        def note(values: Tensor) -> Tensor:
            self.seen[name] += 1
            return getattr(Limits, name)(self, values)
        return note


@pytest.mark.parametrize("form", ["step", "forward"])
def test_each_format_is_applied_where_the_integer_model_has_it(form):
    model, counting = shaken(1, S16), Counting()
    tokens = torch.arange(6).reshape(2, 3)
    expected, _ = model(tokens)
    put(model, counting)
    if form == "forward":
        assert torch.equal(model(tokens)[0], expected)
    else:
        model.step(tokens[:, 0], model.initial_state(2))
    layer = Counter(x=2, z=2, sigmoid=3, silu=1, h=2, o=1, p=1)
    assert counting.seen == layer + layer + Counter(x=1, logit=1)


@pytest.mark.parametrize(("profile", "median", "mean", "equal"), [
    (C12, 0.05, 0.8, 0.02), (FINE, 0.02, 0.4, 0.15)], ids=["C12", "fine"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_logits_are_those_of_the_integers_but_for_the_norms_scales(
        profile, median, mean, equal, seed):
    """With C12 half of the logits are within 0.05, all within 0.5, of a spread of about one; limits
    alone are further off. What is left are reciprocals and scales of a few bits in the norm: if
    they are fine many logits are equal, but for codes that fall on a half and are carried on."""
    model = shaken(seed, profile)
    tokens = np.random.default_rng(seed).integers(0, CONFIG.vocab, (4, 24))
    integers, _ = IntegerModel(quantize(model, profile)).run(tokens)
    wanted = torch.from_numpy(np.asarray(integers)) * 2.0**-profile.logit.frac

    def distance() -> Tensor:
        with torch.no_grad():
            return (model(torch.from_numpy(tokens))[0] - wanted).abs()

    rounded = distance()
    put(model, Limits(profile))
    limited = distance()
    assert rounded.median() < median
    assert rounded.max() < 0.5
    assert rounded.mean() < mean * limited.mean()
    assert (rounded == 0).float().mean() > equal > (limited == 0).float().mean()


def test_a_sequence_at_once_and_by_token_are_the_same_numbers():
    model, tokens = shaken(3), torch.arange(30).reshape(2, 15)
    with torch.no_grad():
        whole, after = model(tokens)
        state, rows = model.initial_state(2), []
        for column in tokens.unbind(1):
            logits, state = model.step(column, state)
            rows.append(logits)
    assert torch.equal(torch.stack(rows, 1), whole)
    assert all(torch.equal(a, b) for one, other in zip(after, state, strict=True)
               for a, b in zip(one, other, strict=True))


@given(st.lists(st.floats(-40, 40, width=32), min_size=1), st.integers(2, 12), st.integers(0, 8))
def test_rounding_is_that_of_the_exporter(values, bits, frac):
    form = FixedPoint(bits, frac)
    # On a fine grid, where float32 adds a half exactly.
    given_values = np.round(np.array(values) * 1024) / 1024
    rounded = round_to(torch.tensor(given_values, dtype=torch.float32), form)
    assert np.array_equal(rounded.numpy() * 2.0**frac, to_fixed("values", given_values, form))


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES.keys())
def test_the_sigmoid_is_the_table_for_every_pre_activation(profile):
    integers = np.arange(profile.z.min, profile.z.max + 1)
    table = np.array(profile.sigmoid_table())
    z = torch.tensor(integers * 2.0**-profile.z.frac, dtype=torch.float32, requires_grad=True)
    found = rounded_sigmoid(z, profile, torch.from_numpy(table))
    found_codes = sigmoid(integers, table, profile.z.min, profile.sigmoid_step_bits)
    expected = found_codes * 2.0**-profile.sigmoid_frac
    # The table is of sigmoids in double precision: one that is next to a half may differ.
    assert np.count_nonzero(found.detach().numpy() != expected.astype(np.float32)) <= 1
    (slope,) = torch.autograd.grad(found.sum(), z)
    smooth = torch.sigmoid(z)
    assert (slope - smooth * (1 - smooth)).abs().max() < 2.0**-profile.sigmoid_frac + 1e-3


def test_every_state_is_rounded_as_the_integers_are():
    generator = np.random.default_rng(5)
    f = generator.integers(0, 256, (40, 3, 7))
    f[:, :, 0] = 255        # as slow as can be: the state moves by whole steps or not at all
    c = generator.integers(C12.h.min, C12.h.max + 1, f.shape)
    h = generator.integers(C12.h.min, C12.h.max + 1, f.shape[1:])
    arguments = [torch.tensor(each * scale, dtype=torch.float32, requires_grad=True)
                 for each, scale in ((f, 1 / 256), (c, 1 / 256), (h, 1 / 256))]
    states = scan_sequential(*arguments, C12.h)
    expected = []
    for forget, candidate in zip(f, c, strict=True):
        h = (forget * h + (256 - forget) * candidate + 128) >> 8
        expected.append(h)
    assert np.array_equal(states.detach().numpy() * 256, np.stack(expected))
    states[-1].sum().backward()
    to_initial = np.prod(f / 256, axis=0)
    assert np.allclose(arguments[2].grad.numpy(), to_initial, atol=1e-6)


def test_gradients_pass_rounding_and_stop_where_a_format_ends():
    values = torch.tensor([-9.0, -0.3, 0.26, 9.0], requires_grad=True)
    round_to(values, FixedPoint(6, 2)).sum().backward()
    assert values.grad.tolist() == [0.0, 1.0, 1.0, 0.0]


def test_a_model_saturates_where_its_profile_does():
    tokens = torch.arange(40).reshape(4, 10)
    for profile in (S16, NARROW):
        model, seen = shaken(1, profile), {"x": [], "p": []}
        with torch.no_grad():
            model.embedding.weight.mul_(30.0)
        for block in model.blocks():
            for part, to in ((block.channel, seen["x"]), (block.channel.down, seen["p"])):
                part.register_forward_pre_hook(
                    lambda _, given, to=to: to.append(given[0].abs().max()))
            nn.init.constant_(block.channel.gate_up.gate.bias, 8.0)
            nn.init.constant_(block.channel.gate_up.up.bias, 8.0)
        with torch.no_grad():
            logits, state = model(tokens)
        assert max(seen["x"]) == profile.x.limit
        assert max(seen["p"]) == profile.p.limit
        assert max(float(h.abs().max()) for (h,) in state) <= profile.z.limit
        assert bool(logits.isfinite().all())


def test_fine_profiles_are_limits_alone_and_models_in_float_have_none():
    assert type(numerics_for(S16)) is Limits
    assert type(numerics_for(C12)) is Formats
    for each in LanguageModel(dataclasses.replace(CONFIG, weights="float")).modules():
        assert type(getattr(each, "numerics", Numerics())) is Numerics


def test_a_classifier_and_a_residual_saturate():
    residual = Residual(nn.Identity(), Limits(NARROW))
    assert residual(torch.tensor([[[1.0, 3.0, -5.0]]])).tolist() == [[[2.0, 4.0, -4.0]]]
    classifier = Classifier(CONFIG, classes=3, length=5)
    nn.init.constant_(classifier.embedding.weight, 99.0)
    seen: list[Tensor] = []
    classifier.layers[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    classifier(torch.zeros(1, 5, dtype=torch.int64))
    assert bool((seen[0] == S16.x.limit).all())
