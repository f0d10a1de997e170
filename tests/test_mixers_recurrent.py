"""What is particular to each recurrent mixer, against torch or against the formula as written.

What all mixers have in common is in test_mixers.py; the mixers of Keras-MML in test_keras_mml.py.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sterna.model.mixers.recurrent.gru import GRU
from sterna.model.mixers.recurrent.grumml import GRUMML
from sterna.model.mixers.recurrent.hgrn2 import HGRN2
from sterna.model.mixers.recurrent.lru import LRU
from sterna.model.mixers.recurrent.mlgru import MLGRU
from sterna.model.network.bitlinear import naive_bit_linear
from sterna.model.network.mixer import TokenMixer
from sterna.model.network.projection import MixerInit, prepare, project
from sterna.model.network.recurrence import (
    complex_scan,
    matrix_scan,
    naive_complex_scan,
    naive_matrix_scan,
    naive_mlgru,
)
from sterna.model.profile import S16

D, TIME, BATCH = 16, 12, 3


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def init(*, ternary: bool) -> MixerInit:
    return MixerInit(D, ternary=ternary, generator=torch.Generator().manual_seed(1))


def shaken(module: nn.Module) -> None:
    """Draw every parameter anew, so that none is zero."""
    with torch.no_grad():
        for at, parameter in enumerate(module.parameters()):
            parameter.copy_(0.4 * normal(*parameter.shape, seed=100 + at))


def pass_through(mixer: TokenMixer) -> None:
    """Let the output projection, a float one, hand on what it is given."""
    out = mixer.out
    assert isinstance(out, nn.Linear)
    with torch.no_grad():
        out.weight.copy_(torch.eye(D))
        out.bias.zero_()


def assert_same(ours: tuple[Tensor, ...], expected: tuple[Tensor, ...], leaves: list[Tensor],
                within: float = 1e-12) -> None:
    """Values, and the gradients of ``leaves`` through a fixed function of all of them."""
    gradients = []
    for results in (ours, expected):
        total = torch.stack([(each * torch.linspace(-1, 2, each.numel(), dtype=each.dtype)
                              .view_as(each)).sum() for each in results]).sum()
        gradients.append(torch.autograd.grad(total, leaves))
    torch.testing.assert_close(ours, expected, rtol=within, atol=within)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=within, atol=within)
    assert all(bool(each.any()) for each in gradients[0])


# GRU

def test_gru_is_that_of_torch() -> None:
    mixer = GRU(init(ternary=False)).double()
    shaken(mixer)
    pass_through(mixer)
    inputs, hidden = [*mixer.inputs.values()], [*mixer.hidden.values()]
    twin = nn.GRU(D, D).double()
    x, state = normal(TIME, BATCH, D, seed=2), normal(BATCH, D, seed=3)
    results, gradients = [], []
    for each in (mixer, twin):
        leaves = [x.clone().requires_grad_(), state.clone().requires_grad_()]
        if each is twin:
            with torch.no_grad():
                for ours, theirs in ((inputs, "ih"), (hidden, "hh")):
                    getattr(twin, f"weight_{theirs}_l0").copy_(torch.cat([m.weight for m in ours]))
                    getattr(twin, f"bias_{theirs}_l0").copy_(torch.cat([m.bias for m in ours]))
            y, last = twin(leaves[0], leaves[1].unsqueeze(0))
        else:
            y, (last,) = mixer(leaves[0], (leaves[1],))
        results.append((y, last.view(BATCH, D)))
        (y * normal(*y.shape, seed=4)).sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-12)
    for ours, theirs in ((inputs, twin.weight_ih_l0), (hidden, twin.weight_hh_l0)):
        torch.testing.assert_close(
            torch.cat([m.weight.grad for m in ours]), theirs.grad, rtol=1e-12, atol=1e-12)


def test_ternary_gru_is_the_loop_as_written() -> None:
    mixer = GRU(init(ternary=True)).double()
    shaken(mixer)
    x = normal(TIME, BATCH, D, seed=2).requires_grad_()
    state = normal(BATCH, D, seed=3).requires_grad_()
    hidden, outputs = state, []
    for t in range(TIME):
        xr, xz, xn = (naive_bit_linear(x[t], [m.weight], [m.bias]) for m in mixer.inputs.values())
        hr, hz, hn = (naive_bit_linear(hidden, [m.weight], [m.bias]) for m in mixer.hidden.values())
        r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
        hidden = (1 - z) * torch.tanh(xn + r * hn) + z * hidden
        outputs.append(naive_bit_linear(hidden, [mixer.out.weight], [mixer.out.bias]))
    y, (last,) = mixer(x, (state,))
    assert_same((y, last), (torch.stack(outputs), hidden), [x, state, *mixer.parameters()], 1e-9)


def test_an_open_update_gate_holds_the_state_of_the_gru() -> None:
    mixer = GRU(init(ternary=False)).double()
    shaken(mixer)
    with torch.no_grad():
        mixer.inputs["z"].bias.fill_(1e3)
    state = normal(BATCH, D, seed=3)
    states = mixer.states(normal(TIME, BATCH, D, seed=2), state)
    assert torch.equal(states, state.expand_as(states))


@pytest.mark.parametrize("ternary", [True, False], ids=["ternary", "float"])
def test_prepared_projections_are_the_projections(ternary: bool) -> None:
    made = init(ternary=ternary)
    layers = nn.ModuleList([made.linear(D, D), made.linear(D, 5)]).double()
    shaken(layers)
    x = normal(4, D, seed=5).requires_grad_()
    assert_same((prepare([*layers])(x),), (project([*layers], x),), [x, *layers.parameters()])
    mixed = [layers[0], init(ternary=not ternary).linear(D, D).double()]
    assert_same((prepare(mixed)(x),), (torch.cat([each(x) for each in mixed], -1),), [x])


# HGRN2

def gates(time: int, width: int, seed: int) -> list[Tensor]:
    """Queries, gates (a third of them exactly 0 or 1), values and a state of two heads."""
    kind = torch.randint(0, 6, (time, BATCH, 2, width),
                         generator=torch.Generator().manual_seed(seed))
    forget = torch.sigmoid(2 * normal(time, BATCH, 2, width, seed=seed))
    forget = forget.masked_fill(kind == 0, 0.0).masked_fill(kind == 1, 1.0)
    return [each.requires_grad_() for each in (
        normal(time, BATCH, 2, width, seed=seed + 1), forget,
        normal(time, BATCH, 2, width, seed=seed + 2),
        normal(BATCH, 2, width, width, seed=seed + 3))]


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
    q, f, v, state = gates(time, 4, seed=10)
    chunked = matrix_scan(q, f, 1 - f, v, state)
    assert_same(chunked, naive_matrix_scan(q, f, 1 - f, v, state), [q, f, v, state])
    outputs = matrix_scan(q, f, 1 - f, v, state)[0]
    assert_same((outputs,), (quadratic_sum(q, f, v, state),), [q, f, v, state])


def test_a_matrix_state_that_forgets_nothing_is_masked_linear_attention() -> None:
    q, _, v, state = gates(TIME, 4, seed=20)
    key = normal(TIME, BATCH, 2, 4, seed=24).requires_grad_()
    y, last = matrix_scan(q, torch.ones_like(q), key, v, torch.zeros_like(state))
    batched = [each.permute(1, 2, 0, 3) for each in (q, key, v)]
    scores = (batched[0] @ batched[1].transpose(-1, -2)).tril()
    assert_same((y, last), ((scores @ batched[2]).permute(2, 0, 1, 3),
                            batched[1].transpose(-1, -2) @ batched[2]), [q, key, v])


def test_chunks_stay_finite_and_near_with_saturated_gates_in_float32() -> None:
    q, f, v, state = (each.detach() for each in gates(64, 4, seed=30))
    f = torch.sigmoid(40 * (f - 0.5)).float().double()
    expected = naive_matrix_scan(q, f, 1 - f, v, state)[0]
    got = matrix_scan(q.float(), f.float(), 1 - f.float(), v.float(), state.float())[0]
    assert float((got.double() - expected).abs().max()) < 2e-6 * float(expected.abs().max())


def test_hgrn2_with_one_channel_a_head_and_no_query_is_the_recurrence_of_mlgru() -> None:
    class NoQuery(HGRN2):
        def gates(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            q, f, v = super().gates(x)
            return torch.ones_like(q), f, v

    mixer = NoQuery(init(ternary=False), expand=1).double()
    shaken(mixer)
    pass_through(mixer)
    mixer.norm = nn.Identity()
    x, state = normal(TIME, BATCH, D, seed=2), normal(BATCH, D, seed=3)
    f = torch.sigmoid(nn.functional.linear(x, mixer.qfv.f.weight, mixer.qfv.f.bias))
    c = nn.functional.linear(x, mixer.qfv.v.weight, mixer.qfv.v.bias)
    y, (last,) = mixer(x, (state.view(BATCH, D, 1, 1),))
    torch.testing.assert_close(y, naive_mlgru(f, c, state), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(last.flatten(1), y[-1], rtol=1e-12, atol=1e-12)


def test_hgrn2_is_its_formula() -> None:
    mixer = HGRN2(init(ternary=False), expand=4, bound=0.3).double()
    shaken(mixer)
    x = normal(TIME, BATCH, D, seed=2).requires_grad_()
    linear = nn.functional.linear
    q = nn.functional.silu(linear(x, mixer.qfv.q.weight, mixer.qfv.q.bias)).unflatten(-1, (4, 4))
    f = 0.3 + 0.7 * torch.sigmoid(
        linear(x, mixer.qfv.f.weight, mixer.qfv.f.bias)).unflatten(-1, (4, 4))
    v = linear(x, mixer.qfv.v.weight, mixer.qfv.v.bias).unflatten(-1, (4, 4))
    o = quadratic_sum(q, f, v, torch.zeros(BATCH, 4, 4, 4, dtype=x.dtype)).flatten(-2)
    rms = o.square().mean(-1, keepdim=True).add(1e-6).sqrt()
    expected = linear(o / rms * mixer.norm.weight, mixer.out.weight, mixer.out.bias)
    assert_same((mixer(x, mixer.initial_state(x))[0],), (expected,), [x, *mixer.parameters()],
                1e-11)


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
    radius = torch.tensor([0.0, 0.5, 0.99, 1.0], dtype=torch.float64)
    phase = normal(4, seed=40)
    leaves = [each.requires_grad_() for each in (
        radius * phase.cos(), radius * phase.sin(),
        *(normal(time, BATCH, 4, seed=41 + i) for i in range(2)),
        *(normal(BATCH, 4, seed=43 + i) for i in range(2)))]
    pairs = (leaves[:2], leaves[2:4], leaves[4:])
    got = complex_scan(*map(tuple, pairs))
    multiplier, added, state = (torch.complex(re, im) for re, im in pairs)
    states = []
    for u in added:
        state = multiplier * state + u
        states.append(state)
    whole = torch.stack(states)
    assert_same(got, (whole.real, whole.imag), leaves)
    torch.testing.assert_close(naive_complex_scan(*map(tuple, pairs)), got, rtol=1e-12, atol=1e-12)


def test_lru_is_its_formula_in_complex_numbers() -> None:
    mixer = LRU(init(ternary=False), state_dim=5, r_min=0.4, r_max=0.9).double()
    shaken(mixer)
    u = normal(TIME, BATCH, D, seed=2).requires_grad_()
    start = torch.complex(normal(BATCH, 5, seed=3), normal(BATCH, 5, seed=4))
    multiplier = torch.exp(torch.complex(-mixer.nu.exp(), mixer.theta.exp()))
    b = torch.complex(mixer.b_re.weight, mixer.b_im.weight)
    c = torch.complex(mixer.c_re.weight, mixer.c_im.weight)
    x, outputs = start, []
    for t in range(TIME):
        x = multiplier * x + torch.exp(mixer.gamma) * (u[t].to(b.dtype) @ b.T)
        outputs.append((x @ c.T).real + u[t] @ mixer.direct.weight.T)
    y, last = mixer(u, (start.real, start.imag))
    assert_same((y, *last), (torch.stack(outputs), x.real, x.imag), [u, *mixer.parameters()])


def test_lru_is_a_convolution() -> None:
    """By FFT: of the inputs with ``Re(C L^t exp(gamma) B)``, as its gates are constant."""
    mixer = LRU(init(ternary=False), state_dim=5).double()
    shaken(mixer)
    with torch.no_grad():
        u = normal(TIME, 1, D, seed=2)
        multiplier = torch.exp(torch.complex(-mixer.nu.exp(), mixer.theta.exp()))
        powers = multiplier ** torch.arange(TIME).unsqueeze(-1) * torch.exp(mixer.gamma)
        b = torch.complex(mixer.b_re.weight, mixer.b_im.weight)
        c = torch.complex(mixer.c_re.weight, mixer.c_im.weight)
        kernel = torch.einsum("on,tn,ni->toi", c, powers, b).real
        kernel[0] += mixer.direct.weight
        spectrum = torch.fft.rfft(kernel, 2 * TIME, dim=0) @ torch.fft.rfft(
            u[:, 0], 2 * TIME, dim=0).unsqueeze(-1)
        expected = torch.fft.irfft(spectrum.squeeze(-1), 2 * TIME, dim=0)[:TIME]
        y, _ = mixer(u, mixer.initial_state(u))
    torch.testing.assert_close(y[:, 0], expected, rtol=1e-11, atol=1e-11)


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
    mixer = LRU(MixerInit(D, generator=torch.Generator().manual_seed(1)), state_dim=4096,
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

def test_costs_are_what_the_formulas_multiply() -> None:
    """Gates times vectors of d; and for each of 5 complex states four, and two for its gain."""
    made = init(ternary=True)
    mixers = [MLGRU(made), GRUMML(made), GRU(made), HGRN2(made, expand=4), LRU(made, state_dim=5)]
    for length in (1, 1000):
        assert [each.products(length) for each in mixers] == [
            3 * D, 3 * D, 3 * D, 3 * 4 * D, (4 + 2) * 5]
        assert [each.macs(length) for each in mixers] == [
            4 * D * D, 2 * D * D, 7 * D * D, 4 * D * D, 4 * 5 * D + D * D]
        assert [each.state_words(length) for each in mixers] == [D, D, D, 4 * D, 2 * 5]


# MLGRU

@pytest.mark.parametrize("kind", [MLGRU, GRUMML])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_heads_computed_one_by_one_give_the_same_bits(
        kind: type[MLGRU] | type[GRUMML], heads: int) -> None:
    """As published: the vectors are cut into heads, and each has a state of its own."""
    mixer = kind(init(ternary=True), heads=heads).double()
    shaken(mixer)
    x, state = normal(TIME, BATCH, D, seed=2), normal(BATCH, D, seed=3)
    with torch.no_grad():
        f, c, g = mixer.gates(x)
        cut = [each.unflatten(-1, (heads, -1)) for each in (f, c, state)]
        by_head = []
        for head in range(heads):
            h, states = cut[2][:, head], []
            for t in range(TIME):
                h = torch.lerp(cut[1][t, :, head], h, cut[0][t, :, head])
                states.append(h)
            by_head.append(torch.stack(states))
        joined = torch.stack(by_head, dim=-2).flatten(-2)
        y, (last,) = mixer(x, (state,))
        assert torch.equal(y, mixer.out(g * joined))
        assert torch.equal(last, joined[-1])


@pytest.mark.parametrize("kind", [MLGRU, GRUMML])
def test_heads_must_divide_d(kind: type[MLGRU] | type[GRUMML]) -> None:
    with pytest.raises(ValueError, match=r"d \(16\) must be a multiple of heads \(3\)"):
        kind(init(ternary=True), heads=3)
    with pytest.raises(ValueError, match="heads"):
        kind(init(ternary=True), heads=0)


@pytest.mark.parametrize("ternary", [True, False], ids=["ternary", "float"])
def test_mlgru_is_its_formula(ternary: bool) -> None:
    mixer = MLGRU(init(ternary=ternary)).double()
    shaken(mixer)

    def through(layer: nn.Module, v: Tensor) -> Tensor:
        if ternary:
            return naive_bit_linear(v, [layer.weight], [layer.bias])
        return nn.functional.linear(v, layer.weight, layer.bias)

    x = normal(TIME, BATCH, D, seed=2).requires_grad_()
    state = normal(BATCH, D, seed=3).requires_grad_()
    limit = S16.z.limit if ternary else math.inf
    f, c, g = (through(layer, x).clamp(-limit, limit) for layer in mixer.fcg.values())
    h = naive_mlgru(torch.sigmoid(f), nn.functional.silu(c), state)
    expected = through(mixer.out, torch.sigmoid(g) * h)
    y, (last,) = mixer(x, (state,))
    assert_same((y, last), (expected, h[-1]), [x, state, *mixer.parameters()], 1e-9)


@pytest.mark.parametrize("ternary", [True, False], ids=["ternary", "float"])
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


def test_a_gated_state_never_exceeds_the_candidates_so_far() -> None:
    f = torch.sigmoid(3 * normal(40, BATCH, D, seed=6))
    c = normal(40, BATCH, D, seed=7)
    h = naive_mlgru(f, c, torch.zeros(BATCH, D, dtype=c.dtype))
    most = c.abs().cummax(dim=0).values
    assert bool((h.abs() <= most).all())
    assert not bool((h.abs() <= 0.5 * most).all())
