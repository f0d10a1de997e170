"""What is particular to each recurrent mixer, against torch or against the formula as written.

What all mixers have in common is in test_mixers.py; the mixers of Keras-MML in test_keras_mml.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from mixer_parts import KINDS, D, assert_same, gates, init, is_formula, normal, redrawn, through
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sterna.model.mixers.recurrent import GRU, HGRN2, LRU, MLGRU
from sterna.model.network.mixer import TokenMixer
from sterna.model.network.recurrence import (
    complex_scan,
    matrix_scan,
    naive_matrix_scan,
    naive_mlgru,
)
from sterna.model.profile import S16

TIME, BATCH = 12, 3


def mapped(mixer: TokenMixer) -> Callable[..., tuple[Tensor, Tensor]]:
    """Outputs and last state of a mixer whose state is one tensor."""
    def form(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        y, (last,) = mixer(x, (state,))
        return y, last
    return form


def sequences() -> list[Tensor]:
    """Inputs, and the state of a vector before them."""
    return [normal(TIME, BATCH, D, seed=2), normal(BATCH, D, seed=3)]


def test_gru_is_that_of_torch():
    mixer, twin = redrawn(GRU(init())), nn.GRU(D, D).double()
    weights = {f"{kind}_{name}_l0": torch.cat([getattr(each, kind) for each in joint.values()])
               for kind in ("weight", "bias")
               for joint, name in ((mixer.inputs, "ih"), (mixer.hidden, "hh"))}

    def torchs(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        y, last = torch.func.functional_call(twin, weights, (x, state.unsqueeze(0)))
        return through(mixer.out, y), last[0]

    assert_same(mapped(mixer), torchs, sequences(), mixer.parameters(), within=1e-11)


def test_ternary_gru_is_the_loop_as_written():
    mixer = redrawn(GRU(init(ternary=True)))

    def loop(x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        outputs = []
        for token in x:
            xr, xz, xn = (through(each, token) for each in mixer.inputs.values())
            hr, hz, hn = (through(each, hidden) for each in mixer.hidden.values())
            r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
            hidden = (1 - z) * torch.tanh(xn + r * hn) + z * hidden
            outputs.append(through(mixer.out, hidden))
        return torch.stack(outputs), hidden

    assert_same(mapped(mixer), loop, sequences(), mixer.parameters())


def heads(time: int, width: int, seed: int) -> list[Tensor]:
    """Queries, gates, values and a state of two heads."""
    query, value = (normal(time, BATCH, 2, width, seed=seed + at) for at in (1, 2))
    return [query, gates(time, BATCH, 2, width, seed=seed), value,
            normal(BATCH, 2, width, width, seed=seed + 3)]


def quadratic_sum(query: Tensor, forget: Tensor, value: Tensor, state: Tensor) -> Tensor:
    """``o_t = (q_t prod_{r<=t} f_r) S_0 + sum_{s<=t} (q_t prod_{s<r<=t} f_r (1 - f_s)) v_s``."""
    outputs = []
    for t in range(query.shape[0]):
        total = torch.einsum("bhk,bhk,bhkv->bhv", query[t], forget[:t + 1].prod(0), state)
        for s in range(t + 1):
            weight = (query[t] * forget[s + 1:t + 1].prod(0) * (1 - forget[s])).sum(-1)
            total = total + weight.unsqueeze(-1) * value[s]
        outputs.append(total)
    return torch.stack(outputs)


@pytest.mark.parametrize("time", [1, 2, 3, 8, 9, 19])
def test_hgrn2s_chunks_are_the_loop_and_the_sum_over_pairs(time):
    given = heads(time, 4, seed=10)
    assert_same(lambda q, f, v, state: matrix_scan(q, f, 1 - f, v, state),
                lambda q, f, v, state: naive_matrix_scan(q, f, 1 - f, v, state), given)
    assert_same(lambda q, f, v, state: matrix_scan(q, f, 1 - f, v, state)[0], quadratic_sum, given)


def test_chunks_stay_finite_and_near_with_saturated_gates_in_float32():
    q, f, v, state = heads(64, 4, seed=30)
    f = torch.sigmoid(40 * (f - 0.5)).float().double()
    expected = naive_matrix_scan(q, f, 1 - f, v, state)[0]
    got = matrix_scan(q.float(), f.float(), 1 - f.float(), v.float(), state.float())[0]
    assert float((got.double() - expected).abs().max()) < 2e-6 * float(expected.abs().max())


def test_hgrn2_is_its_formula():
    mixer = redrawn(HGRN2(init(), expand=4, bound=0.3))

    def formula(x: Tensor) -> Tensor:
        q, f, v = (through(each, x).unflatten(-1, (4, 4)) for each in mixer.qfv.values())
        o = quadratic_sum(F.silu(q), 0.3 + 0.7 * torch.sigmoid(f), v,
                          torch.zeros(BATCH, 4, 4, 4, dtype=x.dtype)).flatten(-2)
        rms = o.square().mean(-1, keepdim=True).add(1e-6).sqrt()
        return through(mixer.out, o / rms * mixer.norm.weight)

    is_formula(mixer, formula, sequences()[0])


@pytest.mark.parametrize("bound", [0.0, 0.25])
def test_the_bound_of_hgrn2_is_the_least_its_forget_gate_can_be(bound):
    mixer = HGRN2(init(ternary=True), bound=bound).double()
    with torch.no_grad():
        mixer.qfv.f.bias.fill_(-60.0)
    f = mixer.gates(normal(TIME, BATCH, D, seed=2))[1]
    assert f.shape == (TIME, BATCH, 1, 16)
    torch.testing.assert_close(f, torch.full_like(f, bound), rtol=0, atol=1e-12)


@pytest.mark.parametrize("time", [1, 2, 3, 8, 13])
def test_scan_of_pairs_is_the_loop_in_torchs_complex_numbers(time):
    radius, phase = torch.tensor([0.0, 0.5, 0.99, 1.0], dtype=torch.float64), normal(4, seed=40)
    given = [radius * phase.cos(), radius * phase.sin(),
             *(normal(time, BATCH, 4, seed=41 + i) for i in range(2)),
             *(normal(BATCH, 4, seed=43 + i) for i in range(2))]

    def loop(*numbers: Tensor) -> tuple[Tensor, Tensor]:
        multiplier, added, state = (
            torch.complex(re, im) for re, im in zip(numbers[::2], numbers[1::2], strict=True))
        states = []
        for u in added:
            state = multiplier * state + u
            states.append(state)
        whole = torch.stack(states)
        return whole.real, whole.imag

    assert_same(lambda *n: complex_scan(n[:2], n[2:4], n[4:]), loop, given)


def test_lru_starts_uniform_on_its_ring_with_states_as_large_as_inputs():
    many = 4000
    mixer = LRU(init(ternary=True), state_dim=many, r_min=0.5, r_max=0.9, max_phase=1.0).double()
    re, im = (each.detach() for each in mixer.multiplier())
    square = re.square() + im.square()
    phase, gamma = torch.atan2(im, re), mixer.gamma.detach()
    assert 0.25 <= float(square.min()) <= float(square.max()) <= 0.81
    assert 0 <= float(phase.min()) <= float(phase.max()) <= 1
    # Uniform: means within four deviations, width / sqrt(12 many) each.
    for values, low, high in ((square, 0.25, 0.81), (phase, 0.0, 1.0)):
        off = abs(float(values.mean()) - (low + high) / 2)
        assert off < 4 * (high - low) / math.sqrt(12 * many)
    # White noise of variance 1 ends as a state of variance 1: the sum of |L|^2t exp(2 gamma).
    torch.testing.assert_close(
        (2 * gamma).exp() / (1 - square), torch.ones_like(square), rtol=1e-5, atol=0)
    re, im = (each.detach() for each in LRU(init(ternary=True), state_dim=many).multiplier())
    assert float(torch.atan2(im, re).min()) < -3   # all around by default


def test_lru_starts_finite_on_the_thinnest_ring_that_float32_can_have():
    mixer = LRU(init(ternary=True), state_dim=4096, r_min=1 - 1e-7)
    assert all(bool(each.isfinite().all()) for each in (mixer.nu, mixer.theta, mixer.gamma))
    for phase in (math.nan, math.inf):
        with pytest.raises(ValueError, match=f"max_phase must be above 0 and finite, got {phase}"):
            LRU(init(), max_phase=phase)


def test_lru_does_without_complex_tensors_so_that_graphs_can_hold_it():
    class NoComplex(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            assert not (isinstance(result, Tensor) and result.is_complex()), function
            return result

    mixer, x = LRU(init(ternary=True)), torch.randn(TIME, BATCH, D)
    with NoComplex():
        mixer(x, mixer.initial_state(x))[0].sum().backward()
        with pytest.raises(AssertionError):
            torch.complex(x, x)


@KINDS
def test_mlgru_is_its_formula_with_limits_where_it_is_ternary(ternary):
    mixer, reached = redrawn(MLGRU(init(ternary=ternary)), 3.0), []
    limit = S16.z.limit if ternary else math.inf

    def formula(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        f, c, g = (through(each, x).clamp(-limit, limit) for each in mixer.fcg.values())
        reached.extend(float(each.detach().abs().max()) for each in (f, c, g))
        h = naive_mlgru(torch.sigmoid(f), F.silu(c), state)
        return through(mixer.out, torch.sigmoid(g) * h), h[-1]

    assert_same(mapped(mixer), formula, sequences(), mixer.parameters())
    assert (max(reached) == S16.z.limit) == ternary
