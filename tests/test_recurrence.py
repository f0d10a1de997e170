"""The fast forms of the recurrence equal the plain loop, values and gradients."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sterna.model.network import recurrence
from sterna.model.network.recurrence import mlgru_scan, naive_mlgru, scan_chunked, scan_sequential

Scan = Callable[[Tensor, Tensor, Tensor], Tensor]
FORMS = [scan_sequential, scan_chunked, mlgru_scan]
shapes = st.tuples(st.integers(1, 70), st.integers(1, 3), st.integers(1, 5))
seeds = st.integers(0, 2**32 - 1)


def random_inputs(shape: tuple[int, int, int], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Gates (a third of them exactly 0 or 1), candidates and a first state, in float64."""
    generator = torch.Generator().manual_seed(seed)
    forget = torch.rand(shape, generator=generator, dtype=torch.float64)
    kind = torch.randint(0, 6, shape, generator=generator)
    forget = forget.masked_fill(kind == 0, 0.0).masked_fill(kind == 1, 1.0)
    candidate = torch.randn(shape, generator=generator, dtype=torch.float64)
    initial = torch.randn(shape[1:], generator=generator, dtype=torch.float64)
    return forget, candidate, initial


def values_and_gradients(form: Scan, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """States, and the gradients of all three inputs for a fixed gradient of the states."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    states = form(*leaves)
    toward = torch.linspace(-1.0, 2.0, states.numel()).to(states.dtype).view_as(states)
    states.backward(toward)
    return [states.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@pytest.mark.parametrize("form", FORMS)
@given(shape=shapes, seed=seeds)
def test_form_equals_the_loop(form: Scan, shape: tuple[int, int, int], seed: int) -> None:
    inputs = random_inputs(shape, seed)
    expected = values_and_gradients(naive_mlgru, inputs)
    got = values_and_gradients(form, inputs)
    assert len(got) == len(expected) == 4
    for ours, loops in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, loops, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("form", FORMS)
@given(shape=shapes, seed=seeds)
def test_float32_stays_near_the_float64_loop(
    form: Scan, shape: tuple[int, int, int], seed: int,
) -> None:
    inputs = random_inputs(shape, seed)
    expected = values_and_gradients(naive_mlgru, inputs)
    got = values_and_gradients(form, tuple(tensor.float() for tensor in inputs))
    for ours, loops in zip(got, expected, strict=True):
        scale = max(1.0, float(loops.abs().max()))
        assert float((ours.double() - loops).abs().max()) <= 3e-6 * scale


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("steps", [1, 2, 16, 17, 128])
def test_closed_gate_copies_the_candidate_and_open_gate_keeps_the_state(
    form: Scan, steps: int,
) -> None:
    candidate = torch.randn(steps, 2, 3)
    initial = torch.randn(2, 3)
    assert torch.equal(form(torch.zeros_like(candidate), candidate, initial), candidate)
    kept = form(torch.ones_like(candidate), candidate, initial)
    assert torch.equal(kept, initial.expand_as(kept))


@given(shape=shapes, seed=seeds)
def test_loops_gradient_is_the_numeric_one(shape: tuple[int, int, int], seed: int) -> None:
    forget, candidate, initial = random_inputs((min(shape[0], 6), *shape[1:]), seed)
    direction = torch.randn(forget.shape, dtype=torch.float64,
                            generator=torch.Generator().manual_seed(seed))
    leaf = forget.clone().requires_grad_()
    naive_mlgru(leaf, candidate, initial).sum().backward()
    step = 1e-6
    ahead = naive_mlgru(forget + step * direction, candidate, initial).sum()
    behind = naive_mlgru(forget - step * direction, candidate, initial).sum()
    assert leaf.grad is not None
    along = float((leaf.grad * direction).sum())
    assert along == pytest.approx(float(ahead - behind) / (2 * step), rel=1e-5, abs=1e-6)


def test_choice_covers_both_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    for name in ("scan_sequential", "scan_chunked"):
        form = getattr(recurrence, name)
        monkeypatch.setattr(
            recurrence, name,
            lambda f, c, h, name=name, form=form: (taken.append(name), form(f, c, h))[1])
    for shape in ((128, 8, 64), (128, 8, 256), (4, 1, 1)):
        mlgru_scan(*random_inputs(shape, 0))
    assert taken == ["scan_chunked", "scan_sequential", "scan_sequential"]


def test_rows_of_a_strided_view_are_accepted() -> None:
    wide = torch.rand(40, 2, 9, dtype=torch.float64)
    forget, candidate, initial = wide[..., :3], wide[..., 3:6], wide[0, :, 6:]
    expected = naive_mlgru(forget, candidate, initial)
    for form in FORMS:
        torch.testing.assert_close(form(forget, candidate, initial), expected)
