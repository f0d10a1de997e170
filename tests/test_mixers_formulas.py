"""Each mixer that is not attention to single tokens against its formula as written, or torch's own.

What all mixers have in common is in test_mixers.py, attention in test_attention.py, the mixers of
Keras-MML in test_keras_mml.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from mixer_parts import (
    DFF,
    KINDS,
    D,
    assert_same,
    built,
    gates,
    init,
    is_formula,
    normal,
    redrawn,
    run,
    through,
    values_and_gradients,
)
from torch import Tensor, nn

from sterna.model.pattern import Choice
from sterna.model.profile import S16
from sterna.model.torch.mixers.fixed import GMLP, FNet, RandomSynthesizer
from sterna.model.torch.mixers.linear import (
    FeatureAttention,
    Performer,
    causal_by_sums,
    elu_features,
    log_features,
    mixed_by_sums,
    orthogonal_rows,
)
from sterna.model.torch.mixers.recurrent import GRU, HGRN2, LRU, MLGRU
from sterna.model.torch.network import recurrence
from sterna.model.torch.network.dense_mml import ACTIVATIONS, activation_named
from sterna.model.torch.network.mixer import TokenMixer
from sterna.model.torch.network.recurrence import (
    complex_scan,
    matrix_scan,
    mlgru_scan,
    naive_matrix_scan,
    naive_mlgru,
    scan_chunked,
    scan_sequential,
)
from sterna.model.torch.network.registry import CHANNEL_MIXERS
from sterna.model.torch.stack.convert import from_module

TIME, LENGTH, BATCH, HEADS = 11, 13, 2, 2
WIDTH = D // HEADS
CAUSAL = pytest.mark.parametrize("causal", ["true", "false"])
X, VECTOR = normal(TIME, BATCH, D, seed=8), normal(BATCH, D, seed=3)

# Recurrences.


def mapped(mixer: TokenMixer) -> Callable[..., tuple[Tensor, Tensor]]:
    """Outputs and last state of a mixer whose state is one tensor."""
    def form(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        y, (last,) = mixer(x, (state,))
        return y, last
    return form


def test_gru_is_that_of_torch():
    mixer, twin = redrawn(GRU(init())), nn.GRU(D, D).double()
    weights = {f"{kind}_{name}_l0": torch.cat([getattr(each, kind) for each in joint.values()])
               for kind in ("weight", "bias")
               for joint, name in ((mixer.inputs, "ih"), (mixer.hidden, "hh"))}

    def torchs(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        y, last = torch.func.functional_call(twin, weights, (x, state.unsqueeze(0)))
        return through(mixer.out, y), last[0]

    assert_same(mapped(mixer), torchs, [X, VECTOR], mixer.parameters(), within=1e-11)


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

    assert_same(mapped(mixer), loop, [X, VECTOR], mixer.parameters())


@KINDS
def test_mlgru_is_its_formula_with_limits_where_it_is_ternary(ternary):
    mixer, reached = redrawn(MLGRU(init(ternary=ternary)), 3.0), []
    limit = S16.z.limit if ternary else math.inf

    def formula(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        f, c, g = (through(each, x).clamp(-limit, limit) for each in mixer.fcg.values())
        reached.extend(float(each.detach().abs().max()) for each in (f, c, g))
        h = naive_mlgru(torch.sigmoid(f), F.silu(c), state)
        return through(mixer.out, torch.sigmoid(g) * h), h[-1]

    assert_same(mapped(mixer), formula, [X, VECTOR], mixer.parameters())
    assert (max(reached) == S16.z.limit) == ternary


FORMS = [scan_sequential, scan_chunked, mlgru_scan]


def random_inputs(shape: tuple[int, int, int], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Gates, candidates and a first state, in float64."""
    return (gates(*shape, seed=seed), normal(*shape, seed=seed + 1),
            normal(*shape[1:], seed=seed + 2))


@pytest.mark.parametrize("form", FORMS)
@given(shape=st.tuples(st.integers(1, 70), st.integers(1, 3), st.integers(1, 5)),
       seed=st.integers(0, 2**32 - 1))
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

    is_formula(mixer, formula, X)


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
    # Finite on the thinnest ring that float32 can have.
    mixer = LRU(init(ternary=True), state_dim=4096, r_min=1 - 1e-7)
    assert all(bool(each.isfinite().all()) for each in (mixer.nu, mixer.theta, mixer.gamma))
    for phase in (math.nan, math.inf):
        with pytest.raises(ValueError, match=f"max_phase must be above 0 and finite, got {phase}"):
            LRU(init(), max_phase=phase)


# By position.


def naive_weighted(
    mixer: TokenMixer, x: Tensor, score: Callable[[int, int, int, int], Tensor],
) -> Tensor:
    """Values weighted by a softmax of ``score(sequence, head, to, from)``, one at a time."""
    v, y = through(mixer.v, x), torch.zeros_like(x)
    for b, head, i in itertools.product(range(x.shape[1]), range(HEADS), range(len(x))):
        part = slice(head * WIDTH, (head + 1) * WIDTH)
        seen = range(i + 1 if mixer.causal else len(x))
        weights = torch.stack([score(b, head, i, j) for j in seen]).exp()
        y[i, b, part] = weights @ v[:len(seen), b, part] / weights.sum()
    return through(mixer.out, y)


@CAUSAL
@pytest.mark.parametrize("kind", ["dense", "random", "random, rank=3"])
def test_synthesizers_are_their_formulas(kind, causal):
    kind, _, rank = kind.partition(", ")
    options = ", ".join(filter(None, [f"length={LENGTH}", f"heads={HEADS}", rank]))
    mixer = built(f"synthesizer_{kind}({options}, causal={causal})")

    def naive(x: Tensor) -> Tensor:
        if kind == "dense":
            scores = through(mixer.scores, through(mixer.inner, x).clamp(min=0))
            return naive_weighted(mixer, x, lambda b, head, i, j: scores[i, b, head * LENGTH + j])
        full = mixer.left @ mixer.right.transpose(-1, -2) if rank else mixer.full
        return naive_weighted(mixer, x, lambda b, head, i, j: full[head, i, j])

    is_formula(mixer, naive, X)


def test_factors_are_as_large_as_the_matrix_they_stand_for():
    """The deviation of the scores at the start does not depend on the rank."""
    full = RandomSynthesizer(init(), length=128, heads=2)
    factors = RandomSynthesizer(init(), length=128, heads=2, rank=8)
    deviations = [float(each.std().detach()) for each in (
        full.full, factors.left @ factors.right.transpose(-1, -2))]
    assert deviations == pytest.approx([0.02, 0.02], rel=0.1)
    assert sum(each.numel() for each in (factors.left, factors.right)) == 2 * 2 * 128 * 8


@pytest.mark.parametrize("time", [1, 6, 12])
def test_fnet_is_the_real_part_of_both_transforms(time):
    """Against the matrices of the definition."""
    x, mixer = normal(time, BATCH, D), FNet(init(), unitary=False)
    assert list(mixer.parameters()) == []

    def matrix(n: int) -> Tensor:
        at = torch.arange(n, dtype=torch.float64)
        return torch.exp(-2j * math.pi * at.outer(at) / n)

    expected = torch.einsum("ts,sbd,dc->tbc", matrix(time), x.to(torch.complex128), matrix(D)).real
    torch.testing.assert_close(run(mixer, x), expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(run(FNet(init()), x), expected / math.sqrt(time * D))


@CAUSAL
def test_gmlp_is_its_formula(causal):
    mixer = built(f"gmlp(length={LENGTH}, causal={causal})")

    def naive(x: Tensor) -> Tensor:
        u, v = (F.gelu(through(each, x)) for each in mixer.uv.values())
        centred = v - v.mean(-1, keepdim=True)
        v = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        v = v * mixer.norm.weight + mixer.norm.bias
        gate = [mixer.bias[i] + sum(mixer.weight[i, j] * v[j]
                                    for j in range(i + 1 if mixer.causal else TIME))
                for i in range(TIME)]
        return through(mixer.out, u * torch.stack(gate))

    is_formula(mixer, naive, X)


@torch.no_grad()
def test_gmlp_begins_with_an_open_gate():
    mixer = GMLP(init(), length=64).double()
    u, rows = normal(64, BATCH, D, seed=1), normal(BATCH, 64, D, seed=2)
    ratio = mixer.gated(u, rows) / u
    assert 0 < float((ratio - 1).abs().max()) < 1e-3
    mixer.weight.zero_()
    assert torch.equal(mixer.gated(u, rows), u)


@CAUSAL
@pytest.mark.parametrize("expansion", [1, 3])
def test_mlp_mixer_is_torchs_linear_layers_over_time(expansion, causal):
    """Values and gradients; a shorter sequence uses the first rows and columns."""
    mixer = built(f"mlp_mixer(length={LENGTH}, expansion={expansion}, causal={causal})")

    def masked(weight: Tensor) -> Tensor:
        part = weight[:, :TIME, :TIME]
        return torch.stack([each.tril() for each in part]) if mixer.causal else part

    def naive(x: Tensor) -> Tensor:
        inner = F.gelu(F.linear(x.transpose(0, 2), masked(mixer.w1).flatten(0, 1),
                                mixer.b1[:, :TIME].flatten()))
        outer = masked(mixer.w2).transpose(0, 1).flatten(1)
        return F.linear(inner, outer, mixer.b2[:TIME]).transpose(0, 2)

    is_formula(mixer, naive, X)


# Linear attention.


def phi(mixer: FeatureAttention, x: Tensor, of_query: bool) -> Tensor:
    """Features of one query or key ``[width]``, from the papers' formulas."""
    if not isinstance(mixer, Performer):
        relu = type(mixer).__name__.startswith("Relu")
        return x.clamp(min=0) if relu else torch.where(x > 0, x + 1, x.exp())
    x = x / WIDTH ** 0.25
    features = torch.exp(mixer.rows @ x - x @ x / 2)
    # A factor for each query cancels, save in the epsilon.
    return features / (features.max() if of_query else math.sqrt(len(features)))


def turned(x: Tensor, position: int) -> Tensor:
    """RoPE by complex numbers: channels i and i + width/2 are real and imaginary part."""
    half = WIDTH // 2
    angle = position * 1e4 ** (-torch.arange(half) / half).double()
    number = torch.complex(x[:half], x[half:]) * torch.exp(1j * angle)
    return torch.cat([number.real, number.imag])


@pytest.mark.parametrize("options", ["rope=false", "rope=true", "causal=false", "decay=2"])
@pytest.mark.parametrize("name", ["linear", "linear_relu", "performer"])
def test_linear_attention_is_the_quadratic_formula(name, options):
    mixer = built(f"{name}(heads={HEADS}, {options})")

    def naive(x: Tensor) -> Tensor:
        q, k, v = (through(each, x) for each in mixer.qkv.values())
        mixed = torch.zeros_like(x)
        for b, head in itertools.product(range(x.shape[1]), range(HEADS)):
            part = slice(head * WIDTH, (head + 1) * WIDTH)
            queries, keys = ([turned(each, t) if mixer.rope else each
                              for t, each in enumerate(rows[:, b, part])] for rows in (q, k))
            for i, query in enumerate(queries):
                seen = range(i + 1 if mixer.causal else len(keys))
                kept = 1 - 2.0 ** -(mixer.decay + head) if mixer.decay else 1.0
                scores = torch.stack([
                    phi(mixer, query, True) @ phi(mixer, keys[j], False) * kept ** (i - j)
                    for j in seen])
                mixed[i, b, part] = scores @ v[:len(seen), b, part] / (scores.sum() + 1e-6)
        return through(mixer.out, mixed)

    is_formula(mixer, naive, X)


@pytest.mark.parametrize("chunk", [1, 3, 4, 11, 64])
@pytest.mark.parametrize("time", [1, 4, 11])
def test_chunks_of_any_size_are_the_recurrence(chunk, time):
    q, k = (elu_features(normal(BATCH, HEADS, time, 5, seed=seed)) for seed in (1, 2))
    inputs = [q, k, normal(BATCH, HEADS, time, 4, seed=3), normal(BATCH, HEADS, 5, 4, seed=4),
              5 + normal(BATCH, HEADS, 5, seed=5).abs()]

    def recurrence(q: Tensor, k: Tensor, v: Tensor, s: Tensor, z: Tensor) -> list[Tensor]:
        out = []
        for t in range(time):
            s = s + k[..., t, :, None] * v[..., t, None, :]
            z = z + k[..., t, :]
            out.append((q[..., t, None, :] @ s)[..., 0, :]
                       / ((q[..., t, :] * z).sum(-1, keepdim=True) + 1e-6))
        return [torch.stack(out, dim=-2), s, z]

    assert_same(lambda *given: causal_by_sums(*given, chunk=chunk), recurrence, inputs)


def test_a_query_without_features_gets_nothing_and_no_bad_gradient():
    """In float32 elu(-30) + 1 is 0, though e^-30 is not."""
    x = torch.full((1, 4), -30.0, requires_grad=True)
    assert float(elu_features(x).detach().max()) == 0
    y = mixed_by_sums(elu_features(x), torch.ones(3, 4), torch.ones(3, 2))
    y.sum().backward()
    assert torch.equal(y, torch.zeros(1, 2))
    assert bool(x.grad.isfinite().all())


def test_features_are_unbiased_and_orthogonal_rows_have_less_variance():
    """Within three standard errors of ``e^(x y)``; blocks of rows are independent."""
    x, y = torch.tensor([[0.3, -0.2, 0.1, 0.6], [0.2, 0.1, -0.4, 0.7]], dtype=torch.float64)

    def estimates(rows: Tensor, scale: float = 1.0) -> Tensor:
        """An estimate of ``e^(x y)`` from each row alone."""
        return (log_features(scale * x, rows) + log_features(scale * y, rows)).exp() * len(rows)

    def z_score(rows: Tensor) -> float:
        of_blocks = estimates(rows).view(-1, 4).mean(1)
        error = of_blocks.std() / math.sqrt(len(of_blocks))
        return float((of_blocks.mean() - (x @ y).exp()) / error)

    generator = torch.Generator().manual_seed(5)
    rows = orthogonal_rows(4 * 20_000, 4, generator).double()
    assert abs(z_score(rows)) < 3
    # Q as LAPACK leaves it, which libraries have shipped.
    square = torch.randn(20_000, 4, 4, dtype=torch.float64, generator=generator)
    lengths = normal(20_000, 4, 4, seed=6).norm(dim=-1, keepdim=True)
    biased = (torch.linalg.qr(square)[0].transpose(-1, -2) * lengths).reshape(-1, 4)
    assert z_score(biased) > 10
    # Of vectors half as long, as the tail of longer ones is too heavy to sample.
    formula = float((x @ y / 2).exp() * (((x + y) / 2).square().sum().exp() - 1))
    independent = estimates(normal(400_000, 4, seed=7), 0.5)
    assert float(independent.var()) == pytest.approx(formula, rel=0.05)
    assert float(estimates(rows, 0.5).view(-1, 4).mean(1).var()) < 0.96 * formula / 4


def test_rows_are_orthogonal_in_blocks_and_as_long_as_normal_ones():
    rows = orthogonal_rows(2 * 16 + 5, 16, torch.Generator().manual_seed(1)).double()
    assert rows.shape == (37, 16)
    for block in rows.split(16):
        products = block @ block.t()
        assert float((products - products.diagonal().diag()).abs().max()) < 1e-5
    squares = orthogonal_rows(4000, 16, torch.Generator().manual_seed(2)).square().sum(1)
    assert float(squares.mean()) == pytest.approx(16, rel=0.02)
    assert float(squares.var()) == pytest.approx(32, rel=0.1)    # chi squared


@pytest.mark.parametrize("width", [16, 64])
def test_features_stay_in_the_range_of_float32(width):
    with pytest.raises(ValueError, match="a head of 128 channels has features beyond the range"):
        built("performer(heads=1)", d=128)
    mixer = Performer(init(d=width), heads=1)
    longest = mixer.rows[mixer.rows.square().sum(1).argmax()]
    worst = (longest * width ** 0.25).expand(1, 1, 6, -1).clone().requires_grad_()
    huge = torch.randn(1, 1, 6, width, generator=torch.Generator().manual_seed(1)) * 1e4
    for q, k in ((worst, worst), (huge, worst), (worst, huge), (huge, huge)):
        features = mixer.of_queries(q), mixer.of_keys(k)
        assert float(features[1].detach().max()) < 1e30
        y = causal_by_sums(*features, torch.ones(1, 1, 6, width),
                           torch.zeros(1, 1, 2 * width, width), torch.zeros(1, 1, 2 * width))[0]
        assert bool(y.isfinite().all())
        assert float(y.detach().max()) <= 1.0001
    (gradient,) = torch.autograd.grad(
        mixer.of_queries(worst).sum() + mixer.of_keys(worst).sum(), worst)
    assert bool(gradient.isfinite().all())


# Channel mixers.

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


@KINDS
@pytest.mark.parametrize("name", [*GATED, *PLAIN])
def test_a_channel_mixer_is_its_formula_and_saturated_values_pass_no_gradient(name, ternary):
    mixer, reached = CHANNEL_MIXERS.build(Choice(name), init(ternary=ternary)).double(), []
    with torch.no_grad():
        for at, parameter in enumerate(mixer.parameters()):
            # Biases so large that some channels are beyond the limits of ternary mixers.
            scale = 0.7 if parameter.dim() > 1 else 5.0
            parameter.copy_(scale * normal(*parameter.shape, seed=100 + at))
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


def test_only_the_glu_with_silu_becomes_a_layer_of_integers():
    with pytest.raises(ValueError, match="is a ReGLU; there are layers for"):
        from_module(CHANNEL_MIXERS.build(Choice("reglu"), init(ternary=True)))


def test_every_channel_mixer_of_the_package_has_its_formula_here():
    own = {name for name in CHANNEL_MIXERS.names()
           if CHANNEL_MIXERS.find(name).__module__.startswith("sterna.model.torch.mixers")}
    assert own == {*GATED, *PLAIN, "glumml"}


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
