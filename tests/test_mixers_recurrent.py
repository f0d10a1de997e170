"""What is particular to each recurrent mixer, against torch or against the formula as written.

What all mixers have in common is in test_mixers.py; the mixers of Keras-MML in test_keras_mml.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from mixer_parts import D, assert_same, init, normal, redrawn, through
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sterna.model.mixers.recurrent import GRU, GRUMML, HGRN2, LRU, MLGRU
from sterna.model.network.mixer import TokenMixer
from sterna.model.network.projection import prepare, project
from sterna.model.network.recurrence import (
    complex_scan,
    matrix_scan,
    naive_complex_scan,
    naive_matrix_scan,
    naive_mlgru,
)
from sterna.model.profile import S16

TIME, BATCH = 12, 3
KINDS = pytest.mark.parametrize("ternary", [True, False], ids=["ternary", "float"])


def mapped(mixer: TokenMixer) -> Callable[..., tuple[Tensor, Tensor]]:
    """Outputs and last state of a mixer whose state is one tensor."""
    def form(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        y, (last,) = mixer(x, (state,))
        return y, last
    return form


def sequences() -> list[Tensor]:
    """Inputs, and the state of a vector before them."""
    return [normal(TIME, BATCH, D, seed=2), normal(BATCH, D, seed=3)]


# GRU

def test_gru_is_that_of_torch() -> None:
    mixer, twin = redrawn(GRU(init())), nn.GRU(D, D).double()
    weights = {f"{kind}_{name}_l0": torch.cat([getattr(each, kind) for each in joint.values()])
               for kind in ("weight", "bias")
               for joint, name in ((mixer.inputs, "ih"), (mixer.hidden, "hh"))}

    def torchs(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        y, last = torch.func.functional_call(twin, weights, (x, state.unsqueeze(0)))
        return through(mixer.out, y), last[0]

    assert_same(mapped(mixer), torchs,
                sequences(), mixer.parameters(), within=1e-11)


def test_ternary_gru_is_the_loop_as_written() -> None:
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

    assert_same(mapped(mixer), loop,
                sequences(), mixer.parameters())


@KINDS
def test_prepared_projections_are_the_projections(ternary: bool) -> None:
    made = init(ternary=ternary)
    layers = redrawn(nn.ModuleList([made.linear(D, D), made.linear(D, 5)]))
    x = normal(4, D, seed=5)
    assert_same(lambda x: prepare([*layers])(x), lambda x: project([*layers], x), x,
                layers.parameters())
    mixed = [layers[0], init(ternary=not ternary).linear(D, D).double()]
    assert_same(prepare(mixed), lambda x: torch.cat([each(x) for each in mixed], -1), x)


# HGRN2

def gates(time: int, width: int, seed: int) -> list[Tensor]:
    """Queries, gates (a third of them exactly 0 or 1), values and a state of two heads."""
    kind = torch.randint(0, 6, (time, BATCH, 2, width),
                         generator=torch.Generator().manual_seed(seed))
    forget = torch.sigmoid(2 * normal(time, BATCH, 2, width, seed=seed))
    forget = forget.masked_fill(kind == 0, 0.0).masked_fill(kind == 1, 1.0)
    return [normal(time, BATCH, 2, width, seed=seed + 1), forget,
            normal(time, BATCH, 2, width, seed=seed + 2),
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
def test_hgrn2s_chunks_are_the_loop_and_the_sum_over_pairs(time: int) -> None:
    given = gates(time, 4, seed=10)
    assert_same(lambda q, f, v, state: matrix_scan(q, f, 1 - f, v, state),
                lambda q, f, v, state: naive_matrix_scan(q, f, 1 - f, v, state), given)
    assert_same(lambda q, f, v, state: matrix_scan(q, f, 1 - f, v, state)[0], quadratic_sum, given)


def test_chunks_stay_finite_and_near_with_saturated_gates_in_float32() -> None:
    q, f, v, state = gates(64, 4, seed=30)
    f = torch.sigmoid(40 * (f - 0.5)).float().double()
    expected = naive_matrix_scan(q, f, 1 - f, v, state)[0]
    got = matrix_scan(q.float(), f.float(), 1 - f.float(), v.float(), state.float())[0]
    assert float((got.double() - expected).abs().max()) < 2e-6 * float(expected.abs().max())


def test_hgrn2_with_one_channel_a_head_and_no_query_is_the_recurrence_of_mlgru() -> None:
    class NoQuery(HGRN2):
        def gates(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            q, f, v = super().gates(x)
            return torch.ones_like(q), f, v

    mixer = redrawn(NoQuery(init(), expand=1))
    mixer.norm = nn.Identity()
    x, state = sequences()
    f, c = torch.sigmoid(through(mixer.qfv.f, x)), through(mixer.qfv.v, x)
    y, (last,) = mixer(x, (state.view(BATCH, D, 1, 1),))
    states = naive_mlgru(f, c, state)
    torch.testing.assert_close(y, through(mixer.out, states), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(last.flatten(1), states[-1], rtol=1e-12, atol=1e-12)


def test_hgrn2_is_its_formula() -> None:
    mixer = redrawn(HGRN2(init(), expand=4, bound=0.3))

    def formula(x: Tensor) -> Tensor:
        q, f, v = (through(each, x).unflatten(-1, (4, 4)) for each in mixer.qfv.values())
        o = quadratic_sum(F.silu(q), 0.3 + 0.7 * torch.sigmoid(f), v,
                          torch.zeros(BATCH, 4, 4, 4, dtype=x.dtype)).flatten(-2)
        rms = o.square().mean(-1, keepdim=True).add(1e-6).sqrt()
        return through(mixer.out, o / rms * mixer.norm.weight)

    assert_same(lambda x: mixer(x, mixer.initial_state(x))[0], formula, sequences()[0],
                mixer.parameters())


@pytest.mark.parametrize("bound", [0.0, 0.25])
def test_the_bound_of_hgrn2_is_the_least_its_forget_gate_can_be(bound: float) -> None:
    mixer = HGRN2(init(ternary=True), bound=bound).double()
    with torch.no_grad():
        mixer.qfv.f.bias.fill_(-60.0)
    f = mixer.gates(normal(TIME, BATCH, D, seed=2))[1]
    assert f.shape == (TIME, BATCH, 1, 16)
    torch.testing.assert_close(f, torch.full_like(f, bound), rtol=0, atol=1e-12)
    assert mixer.products(5) == 3 * D * 16 + (D if bound else 0)


@pytest.mark.parametrize(("options", "message"), [
    ({"expand": 5}, r"d \(16\) must be a multiple of expand \(5\)"),
    ({"expand": 0}, "expand"),
    ({"bound": 1.0}, "bound must be at least 0 and below 1, got 1.0"),
])
def test_options_that_hgrn2_cannot_have_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HGRN2(init(ternary=True), **options)


# LRU

@pytest.mark.parametrize("time", [1, 2, 3, 8, 13])
def test_scan_of_pairs_is_the_loop_in_torchs_complex_numbers(time: int) -> None:
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

    for form in (complex_scan, naive_complex_scan):
        assert_same(lambda *n, form=form: form(n[:2], n[2:4], n[4:]), loop, given)


def test_lru_is_its_formula_in_complex_numbers() -> None:
    mixer = redrawn(LRU(init(), state_dim=5, r_min=0.4, r_max=0.9))

    def loop(u: Tensor, re: Tensor, im: Tensor) -> tuple[Tensor, ...]:
        multiplier = torch.exp(torch.complex(-mixer.nu.exp(), mixer.theta.exp()))
        b = torch.complex(mixer.b_re.weight, mixer.b_im.weight)
        c = torch.complex(mixer.c_re.weight, mixer.c_im.weight)
        x, outputs = torch.complex(re, im), []
        for token in u:
            x = multiplier * x + torch.exp(mixer.gamma) * (token.to(b.dtype) @ b.T)
            outputs.append((x @ c.T).real + token @ mixer.direct.weight.T)
        return torch.stack(outputs), x.real, x.imag

    def ours(u: Tensor, re: Tensor, im: Tensor) -> tuple[Tensor, ...]:
        y, last = mixer(u, (re, im))
        return y, *last

    assert_same(ours, loop, [sequences()[0], normal(BATCH, 5, seed=3), normal(BATCH, 5, seed=4)],
                mixer.parameters())


def test_lru_starts_uniform_on_its_ring_with_states_as_large_as_inputs() -> None:
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


def test_lru_starts_finite_on_the_thinnest_ring_that_float32_can_have() -> None:
    mixer = LRU(init(ternary=True), state_dim=4096,
                r_min=1 - 1e-7)
    assert all(bool(each.isfinite().all()) for each in (mixer.nu, mixer.theta, mixer.gamma))


def test_lru_does_without_complex_tensors_so_that_graphs_can_hold_it() -> None:
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


@pytest.mark.parametrize(("options", "message"), [
    ({"r_min": 0.9, "r_max": 0.5}, "0 <= r_min < r_max <= 1 must hold, got 0.9 and 0.5"),
    ({"r_max": 1.5}, "r_max <= 1"), ({"r_min": -0.1}, "0 <= r_min"),
    ({"max_phase": 0.0}, "max_phase must be above 0"), ({"state_dim": -1}, "state_dim"),
    ({"max_phase": math.nan}, "got nan"), ({"max_phase": math.inf}, "and finite, got inf"),
])
def test_options_that_lru_cannot_have_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LRU(init(ternary=True), **options)


# Costs

def test_products_are_what_the_formulas_multiply() -> None:
    """Gates times vectors of d; and for each of 5 complex states four, and two for its gain."""
    made = init(ternary=True)
    mixers = [MLGRU(made), GRUMML(made), GRU(made), HGRN2(made, expand=4), LRU(made, state_dim=5)]
    for length in (1, 1000):
        assert [each.products(length) for each in mixers] == [
            3 * D, 3 * D, 3 * D, 3 * 4 * D, (4 + 2) * 5]


# MLGRU

@KINDS
def test_mlgru_is_its_formula(ternary: bool) -> None:
    mixer = redrawn(MLGRU(init(ternary=ternary)))
    limit = S16.z.limit if ternary else math.inf

    def formula(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        f, c, g = (through(each, x).clamp(-limit, limit) for each in mixer.fcg.values())
        h = naive_mlgru(torch.sigmoid(f), F.silu(c), state)
        return through(mixer.out, torch.sigmoid(g) * h), h[-1]

    assert_same(mapped(mixer), formula,
                sequences(), mixer.parameters())


@KINDS
def test_only_the_ternary_mlgru_limits_what_goes_into_its_gates(ternary: bool) -> None:
    mixer = MLGRU(init(ternary=ternary)).double()
    for part, bias in ((mixer.fcg.f, -1e3), (mixer.fcg.c, 1e3), (mixer.fcg.g, 1e3)):
        with torch.no_grad():
            part.weight.fill_(0.5).view(-1)[::3] = 0.0
            part.bias.fill_(bias)
    f, c, g = (each.detach() for each in mixer.gates(normal(TIME, BATCH, D, seed=2)))
    top = torch.tensor(S16.z.limit, dtype=torch.float64)
    if ternary:
        for found, wanted in ((f, (-top).sigmoid()), (c, top * top.sigmoid()), (g, top.sigmoid())):
            torch.testing.assert_close(found, wanted.expand_as(found))
    else:
        assert float(f.max()) < 1e-100
        assert float(c.min()) > 900
