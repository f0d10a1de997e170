"""A model that is trained for a profile computes what its integers compute, nearly."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sterna.model.config import ModelConfig
from sterna.model.network.bitlinear import BitLinear
from sterna.model.network.numerics import (
    Formats,
    Limits,
    Numerics,
    numerics_for,
    round_to,
    rounded_scan,
    rounded_sigmoid,
)
from sterna.model.profile import C12, PROFILES, S16, FixedPoint, NumericProfile
from sterna.model.quantized.fixed import to_fixed
from sterna.model.quantized.integer import IntegerModel, sigmoid
from sterna.model.stack.language_model import LanguageModel
from sterna.model.training.quantize import quantize

CONFIG = ModelConfig(d=24, layers=2, dff=40, vocab=40)


def shaken(seed: int) -> LanguageModel:
    """A model for C12 whose values reach its limits."""
    model = LanguageModel(CONFIG, seed=seed, profile=C12)
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
            assert isinstance(each._round_bias, partial)
            each._round_bias = partial(numerics.bias, **each._round_bias.keywords)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 1000))
def test_logits_are_those_of_the_integers_but_for_the_norms_scales(seed: int) -> None:
    """Half of the logits are within 0.05, all within 0.5, of a spread of about one; limits alone
    are further off. What is left are reciprocals and scales of a few bits in the norm."""
    model, tokens = shaken(seed), np.random.default_rng(seed).integers(0, CONFIG.vocab, (4, 24))
    integers, _ = IntegerModel(quantize(model, C12)).run(tokens)
    wanted = torch.from_numpy(np.asarray(integers)) * 2.0**-C12.logit.frac

    def distance() -> Tensor:
        with torch.no_grad():
            return (model(torch.from_numpy(tokens))[0] - wanted).abs()

    rounded = distance()
    put(model, Limits(C12))
    limited = distance()
    assert rounded.median() < 0.05
    assert rounded.max() < 0.5
    assert rounded.mean() < 0.8 * limited.mean()
    assert (rounded == 0).float().mean() > 0.02 > (limited == 0).float().mean()


def test_a_sequence_at_once_and_by_token_are_the_same_numbers() -> None:
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
def test_rounding_is_that_of_the_exporter(values: list[float], bits: int, frac: int) -> None:
    form = FixedPoint(bits, frac)
    # On a fine grid, where float32 adds a half exactly.
    given_values = np.round(np.array(values) * 1024) / 1024
    rounded = round_to(torch.tensor(given_values, dtype=torch.float32), form)
    assert np.array_equal(rounded.numpy() * 2.0**frac, to_fixed("values", given_values, form))


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES.keys())
def test_the_sigmoid_is_the_table_for_every_pre_activation(profile: NumericProfile) -> None:
    integers = np.arange(profile.z.min, profile.z.max + 1)
    table = np.array(profile.sigmoid_table())
    z = torch.tensor(integers * 2.0**-profile.z.frac, dtype=torch.float32, requires_grad=True)
    found = rounded_sigmoid(z, profile, torch.from_numpy(table))
    expected = sigmoid(integers, table, profile) * 2.0**-profile.sigmoid_frac
    # The table is of sigmoids in double precision: one that is next to a half may differ.
    assert np.count_nonzero(found.detach().numpy() != expected.astype(np.float32)) <= 1
    (slope,) = torch.autograd.grad(found.sum(), z)
    smooth = torch.sigmoid(z)
    assert (slope - smooth * (1 - smooth)).abs().max() < 2.0**-profile.sigmoid_frac + 1e-3


def test_every_state_is_rounded_as_the_integers_are() -> None:
    generator = np.random.default_rng(5)
    f = generator.integers(0, 256, (40, 3, 7))
    f[:, :, 0] = 255        # as slow as can be: the state moves by whole steps or not at all
    c = generator.integers(C12.h.min, C12.h.max + 1, f.shape)
    h = generator.integers(C12.h.min, C12.h.max + 1, f.shape[1:])
    arguments = [torch.tensor(each * scale, dtype=torch.float32, requires_grad=True)
                 for each, scale in ((f, 1 / 256), (c, 1 / 256), (h, 1 / 256))]
    states = rounded_scan(*arguments, C12.h)
    expected = []
    for forget, candidate in zip(f, c, strict=True):
        h = (forget * h + (256 - forget) * candidate + 128) >> 8
        expected.append(h)
    assert np.array_equal(states.detach().numpy() * 256, np.stack(expected))
    states[-1].sum().backward()
    to_initial = np.prod(f / 256, axis=0)
    assert np.allclose(arguments[2].grad.numpy(), to_initial, atol=1e-6)


def test_gradients_pass_rounding_and_stop_where_a_format_ends() -> None:
    values = torch.tensor([-9.0, -0.3, 0.26, 9.0], requires_grad=True)
    round_to(values, FixedPoint(6, 2)).sum().backward()
    assert values.grad.tolist() == [0.0, 1.0, 1.0, 0.0]


def test_fine_profiles_are_limits_alone() -> None:
    assert type(numerics_for(S16)) is Limits
    assert type(numerics_for(C12)) is Formats
