"""The fast forms of the recurrence equal the plain loop, values and gradients."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mixer_parts import gates, normal, values_and_gradients
from torch import Tensor

from sterna.model.network import recurrence
from sterna.model.network.recurrence import mlgru_scan, naive_mlgru, scan_chunked, scan_sequential

Scan = Callable[[Tensor, Tensor, Tensor], Tensor]
FORMS = [scan_sequential, scan_chunked, mlgru_scan]
shapes = st.tuples(st.integers(1, 70), st.integers(1, 3), st.integers(1, 5))
seeds = st.integers(0, 2**32 - 1)


def random_inputs(shape: tuple[int, int, int], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Gates, candidates and a first state, in float64."""
    return (gates(*shape, seed=seed), normal(*shape, seed=seed + 1),
            normal(*shape[1:], seed=seed + 2))


@pytest.mark.parametrize("form", FORMS)
@given(shape=shapes, seed=seeds)
def test_form_equals_the_loop_and_in_float32_stays_near(form, shape, seed):
    inputs = random_inputs(shape, seed)
    expected = values_and_gradients(naive_mlgru, inputs)
    torch.testing.assert_close(values_and_gradients(form, inputs), expected, rtol=1e-11, atol=1e-11)
    narrow = values_and_gradients(form, tuple(tensor.float() for tensor in inputs))
    for ours, loops in zip(narrow, expected, strict=True):
        scale = max(1.0, float(loops.abs().max()))
        assert float((ours.double() - loops).abs().max()) <= 3e-6 * scale


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("steps", [1, 2, 16, 17, 128])
def test_closed_gate_copies_the_candidate_and_open_gate_keeps_the_state(form, steps):
    candidate = torch.randn(steps, 2, 3)
    initial = torch.randn(2, 3)
    assert torch.equal(form(torch.zeros_like(candidate), candidate, initial), candidate)
    kept = form(torch.ones_like(candidate), candidate, initial)
    assert torch.equal(kept, initial.expand_as(kept))


def test_choice_covers_both_forms(monkeypatch):
    taken = []
    for name in ("scan_sequential", "scan_chunked"):
        form = getattr(recurrence, name)
        monkeypatch.setattr(
            recurrence, name,
            lambda f, c, h, name=name, form=form: (taken.append(name), form(f, c, h))[1])
    for shape in ((128, 8, 64), (128, 8, 256), (4, 1, 1)):
        mlgru_scan(*random_inputs(shape, 0))
    assert taken == ["scan_chunked", "scan_sequential", "scan_sequential"]


def test_rows_of_a_strided_view_are_accepted():
    wide = torch.rand(40, 2, 9, dtype=torch.float64)
    forget, candidate, initial = wide[..., :3], wide[..., 3:6], wide[0, :, 6:]
    expected = naive_mlgru(forget, candidate, initial)
    for form in FORMS:
        torch.testing.assert_close(form(forget, candidate, initial), expected)
