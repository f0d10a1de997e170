"""Attention and its forms, each held to torch's own functions or to a twin written for reading."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import sterna.model.mixers  # noqa: F401  (registers them)
from sterna.model.mixers.attention import Attention
from sterna.model.network.heads import head_count, rotate
from sterna.model.network.projection import MixerInit
from sterna.model.network.registry import TOKEN_MIXERS
from sterna.model.pattern import parse_pattern

D, T, BATCH = 16, 12, 2
SOFTMAX = ("attention(heads=2)", "attention(heads=2, causal=false)", "gqa(heads=4, groups=2)",
           "mqa(heads=4)", "window(size=5, heads=2)", "sinks(sinks=2, size=4, heads=2)")

Cache = list[tuple[int, int]]
"""The keys that a query sees, each with the distance that its rotation is for."""


def build(pattern: str, seed: int = 0, d: int = D) -> Attention:
    """A float mixer in float64 of which no part, the last projection included, starts at zero."""
    mixer = TOKEN_MIXERS.build(
        parse_pattern(pattern)[0],
        MixerInit(d, ternary=False, generator=torch.Generator().manual_seed(seed)))
    assert isinstance(mixer, Attention)
    generator = torch.Generator().manual_seed(seed)
    for parameter in mixer.double().parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    return mixer


def tokens(seed: int = 1, time: int = T, d: int = D) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(time, BATCH, d, dtype=torch.float64, generator=generator)


def whole(mixer: Attention, x: Tensor) -> Tensor:
    return mixer(x, mixer.initial_state(x))[0]


def stepped(mixer: Attention, x: Tensor) -> Tensor:
    state, outputs = mixer.initial_state(x), []
    for token in x:
        y, state = mixer.step(token, state)
        outputs.append(y)
    return torch.stack(outputs)


def close(found: Tensor, wanted: Tensor, atol: float = 1e-13) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=atol)


def every(i: int) -> Cache:
    return [(j, i - j) for j in range(T)]


def earlier(i: int) -> Cache:
    return [(j, i - j) for j in range(i + 1)]


def newest(size: int) -> Callable[[int], Cache]:
    return lambda i: earlier(i)[-size:]


def streaming_llm(sinks: int, size: int) -> Callable[[int], Cache]:
    """A cache as the paper describes it, filled token by token; a position is an index in it."""
    def cache_of(i: int) -> Cache:
        cache: list[int] = []
        for j in range(i + 1):
            cache.append(j)
            if len(cache) > sinks + size:
                del cache[sinks]
        return [(j, len(cache) - 1 - index) for index, j in enumerate(cache)]
    return cache_of


def naive_attention(
    mixer: Attention, x: Tensor, seen: Callable[[int], Cache],
    weigh: Callable[[Tensor], Tensor] = lambda scores: torch.softmax(scores, 0),
) -> Tensor:
    """One query, head and sequence at a time; rotation as a product of complex numbers."""
    q, k, v = mixer.qkv.q(x), mixer.qkv.k(x), mixer.qkv.v(x)
    width, half, share = mixer.width, mixer.width // 2, mixer.heads // mixer.kv_heads
    turns = 1e4 ** (-torch.arange(half, dtype=torch.float64) / half)

    def as_complex(vector: Tensor) -> Tensor:
        return torch.complex(vector[:half], vector[half:])

    rows = []
    for i in range(len(x)):
        for b in range(x.shape[1]):
            for h in range(mixer.heads):
                own = slice(h * width, (h + 1) * width)
                theirs = slice(h // share * width, (h // share + 1) * width)
                scores = []
                for j, distance in seen(i):
                    angle = turns * (distance if mixer.rope else 0)
                    product = (as_complex(q[i, b, own]) * as_complex(k[j, b, theirs]).conj()
                               * torch.polar(torch.ones_like(angle), angle))
                    scores.append(product.real.sum() / math.sqrt(width))
                weights = weigh(torch.stack(scores))
                rows.append(sum(w * v[j, b, theirs]
                                for w, (j, _) in zip(weights, seen(i), strict=True)))
    return mixer.out(torch.stack(rows).reshape(len(x), x.shape[1], -1))


def relu_mean(scores: Tensor) -> Tensor:
    return F.relu(scores) / len(scores)


TWINS = {
    "attention(heads=2)": (earlier,),
    "attention(heads=1, rope=false)": (earlier,),
    "attention(heads=2, causal=false)": (every,),
    "relu_attention(heads=2)": (earlier, relu_mean),
    "relu_attention(heads=2, causal=false)": (every, relu_mean),
    "gqa(heads=4, groups=2)": (earlier,),
    "mqa(heads=4)": (earlier,),
    "window(size=5, heads=2)": (newest(5),),
    "window(size=1)": (newest(1),),
    "sinks(sinks=2, size=4, heads=2)": (streaming_llm(2, 4),),
    "sinks(sinks=3, size=1, heads=2)": (streaming_llm(3, 1),),
    "sinks(sinks=2, size=4, rope=false)": (streaming_llm(2, 4),),
}


@pytest.mark.parametrize("pattern", TWINS)
def test_values_and_gradients_equal_the_naive_twin(pattern: str) -> None:
    mixer, x = build(pattern), tokens().requires_grad_()
    inputs = (x, *mixer.parameters())
    found, wanted = whole(mixer, x), naive_attention(mixer, x, *TWINS[pattern])
    close(found, wanted)
    direction = tokens(2)
    # Adding to the bias of the keys moves all scores of a softmax alike: without rotation that
    # gradient is zero, and both have it as rounding.
    for ours, theirs in zip(torch.autograd.grad(found, inputs, direction),
                            torch.autograd.grad(wanted, inputs, direction), strict=True):
        close(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("pattern", [name for name in TWINS if "causal=false" not in name])
def test_decoding_equals_the_naive_twin(pattern: str) -> None:
    mixer, x = build(pattern), tokens()
    with torch.no_grad():
        close(stepped(mixer, x), naive_attention(mixer, x, *TWINS[pattern]))


@pytest.mark.parametrize("lengths", [(1, 5, 6), (5, 7), (7, 1, 4)])
@pytest.mark.parametrize("pattern", [name for name in TWINS if "causal=false" not in name])
def test_a_text_may_be_read_in_pieces(pattern: str, lengths: tuple[int, ...]) -> None:
    mixer, x = build(pattern), tokens()
    state, outputs = mixer.initial_state(x), []
    with torch.no_grad():
        for piece in x.split(lengths):
            y, state = mixer(piece, state)
            outputs.append(y)
        close(torch.cat(outputs), whole(mixer, x))


@pytest.mark.parametrize("pattern", SOFTMAX)
def test_constant_values_are_returned(pattern: str) -> None:
    mixer = build(pattern)
    with torch.no_grad():
        mixer.qkv.v.weight.zero_()
        mixer.out.weight.copy_(torch.eye(D))
        mixer.out.bias.zero_()
        shared = mixer.qkv.v.bias.unflatten(0, (mixer.kv_heads, -1)).repeat_interleave(
            mixer.heads // mixer.kv_heads, dim=0).flatten()
        close(whole(mixer, tokens()), shared.expand(T, BATCH, D))


def multi_head_attention(mixer: Attention, x: Tensor, mask: Tensor | None) -> Tensor:
    """torch's own function with the same weights; a mask is true where a key may not be seen."""
    return F.multi_head_attention_forward(
        x, x, x, mixer.d, mixer.heads,
        torch.cat([each.weight for each in mixer.qkv.values()]),
        torch.cat([each.bias for each in mixer.qkv.values()]),
        None, None, False, 0.0, mixer.out.weight, mixer.out.bias,
        attn_mask=mask, need_weights=False)[0]


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("causal", ["true", "false"])
def test_attention_equals_torchs_multi_head_attention(heads: int, causal: str) -> None:
    mixer = build(f"attention(heads={heads}, causal={causal}, rope=false)")
    x = tokens().requires_grad_()
    mask = torch.ones(T, T, dtype=torch.bool).triu(1) if mixer.causal else None
    found, wanted = whole(mixer, x), multi_head_attention(mixer, x, mask)
    close(found, wanted)
    for ours, theirs in zip(torch.autograd.grad(found.square().sum(), (x, mixer.out.weight)),
                            torch.autograd.grad(wanted.square().sum(), (x, mixer.out.weight)),
                            strict=True):
        close(ours, theirs, atol=1e-11)


@pytest.mark.parametrize(("pattern", "sinks", "size"), [
    ("window(size=4, heads=2, rope=false)", 0, 4),
    ("sinks(sinks=3, size=4, heads=2, rope=false)", 3, 4)])
def test_decoding_from_a_ring_equals_torch_with_a_banded_mask(
    pattern: str, sinks: int, size: int,
) -> None:
    mixer, x, place = build(pattern), tokens(), torch.arange(T)
    back = place.unsqueeze(-1) - place
    unseen = (back < 0) | ((back >= size) & (place >= sinks))
    with torch.no_grad():
        close(stepped(mixer, x), multi_head_attention(mixer, x, unseen))


def test_one_head_is_a_plain_scaled_dot_product() -> None:
    mixer, x = build("attention(heads=1, rope=false)"), tokens()
    with torch.no_grad():
        q, k, v = (part(x).transpose(0, 1) for part in mixer.qkv.values())
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        close(whole(mixer, x), mixer.out(mixed.transpose(0, 1)))


@pytest.mark.parametrize("pattern", [
    "attention(heads=4)", "relu_attention(heads=4)", "window(size=5, heads=4)",
    "sinks(sinks=2, size=4, heads=4)"])
def test_the_order_of_heads_is_nothing_but_the_order_of_their_weights(pattern: str) -> None:
    mixer, shuffled = build(pattern), build(pattern)
    order = torch.arange(D).unflatten(0, (4, -1))[[2, 0, 3, 1]].flatten()
    with torch.no_grad():
        for part in shuffled.qkv.values():
            part.weight.copy_(part.weight[order])
            part.bias.copy_(part.bias[order])
        assert not torch.allclose(whole(shuffled, tokens()), whole(mixer, tokens()))
        shuffled.out.weight.copy_(shuffled.out.weight[:, order])
        close(whole(shuffled, tokens()), whole(mixer, tokens()))


def take_over(mixer: Attention, other: Attention) -> Attention:
    """The weights of another, each head of keys and values for all its heads of queries."""
    weights = other.state_dict()
    for name in ("qkv.k.weight", "qkv.k.bias", "qkv.v.weight", "qkv.v.bias"):
        weights[name] = weights[name].unflatten(0, (other.kv_heads, -1)).repeat_interleave(
            mixer.kv_heads // other.kv_heads, dim=0).flatten(0, 1)
    mixer.load_state_dict(weights)
    return mixer


@pytest.mark.parametrize("pattern", [
    "gqa(heads=4, groups=4)", "gqa(heads=4)", "gqa(heads=4, groups=1)", "mqa(heads=4)"])
def test_shared_keys_are_keys_repeated(pattern: str) -> None:
    shared = build(pattern)
    full = take_over(build("attention(heads=4)"), shared)
    with torch.no_grad():
        close(whole(shared, tokens()), whole(full, tokens()))
    assert shared.state_words(9) * 4 == full.state_words(9) * shared.kv_heads


def test_rotation_is_a_product_of_complex_numbers() -> None:
    x, positions = tokens(time=5, d=10).transpose(0, 1), torch.tensor([0, 1, 2, 1000, 20_000])
    angle = positions.double().unsqueeze(-1) * 1e4 ** (-torch.arange(5).double() / 5)
    pairs = torch.view_as_complex(torch.stack([x[..., :5], x[..., 5:]], -1))
    turned = pairs * torch.exp(1j * angle)
    close(rotate(x, positions), torch.cat([turned.real, turned.imag], -1))
    close(rotate(x, positions).norm(dim=-1), x.norm(dim=-1))


def test_rotated_scores_depend_on_differences_of_positions_only() -> None:
    q, k, place = tokens(1).transpose(0, 1), tokens(2).transpose(0, 1), torch.arange(T)

    def scores(shift: int) -> Tensor:
        return rotate(q, place + shift) @ rotate(k, place + shift).transpose(-1, -2)

    close(scores(137), scores(0), atol=1e-11)
    moved = rotate(q, place + 137) @ rotate(k, place).transpose(-1, -2)
    assert not torch.allclose(moved, scores(0))


def test_the_last_channel_of_an_odd_width_is_not_turned() -> None:
    x = tokens(d=7)
    turned = rotate(x, torch.full((BATCH,), 3))
    close(turned[..., 6], x[..., 6])
    close(turned[..., :6], rotate(x[..., :6], torch.full((BATCH,), 3)))


@pytest.mark.parametrize(("pattern", "same"), [
    (f"window(size={T}, heads=2)", "attention(heads=2)"),
    (f"sinks(sinks=5, size={T - 5}, heads=2)", "attention(heads=2)"),
    (f"sinks(sinks={T}, size=1, heads=2)", "attention(heads=2)"),
    ("sinks(sinks=0, size=5, heads=2)", "window(size=5, heads=2)")])
def test_a_form_at_its_limit_is_another(pattern: str, same: str) -> None:
    limit, other = build(pattern), build(same, seed=1)
    limit.load_state_dict(other.state_dict())
    with torch.no_grad():
        for run in (whole, stepped):
            close(run(limit, tokens()), whole(other, tokens()))
        shorter = build(pattern.replace(f"size={limit.size}", f"size={limit.size + 1}")
                        if same.startswith("window") else "window(size=4, heads=2)")
        shorter.load_state_dict(other.state_dict())
        assert not torch.allclose(whole(shorter, tokens()), whole(other, tokens()))


@pytest.mark.parametrize(("pattern", "sinks", "size"), [
    ("window(size=6, heads=2)", 0, 6), ("sinks(sinks=3, size=6, heads=2)", 3, 6)])
def test_a_long_text_is_read_with_the_state_of_a_short_one(
    pattern: str, sinks: int, size: int,
) -> None:
    mixer, x = build(pattern), tokens(time=400)
    state, sizes = mixer.initial_state(x), set()
    with torch.no_grad():
        for n, token in enumerate(x):
            y, state = mixer.step(token, state)
            if n >= sinks + size:
                sizes.add(sum(each[0].numel() for each in state))
        # What was forgotten has no part in it: the last token of the kept ones alone is the same.
        kept = torch.cat([x[:sinks], x[-size:]])
        close(y, whole(mixer, kept)[-1])
        _, state = mixer(x, mixer.initial_state(x))
        assert all(each.untyped_storage().nbytes() == each.nbytes for each in state)
    assert sizes == {2 * (sinks + size - 1) * D} == {mixer.state_words(10 ** 6)}


def test_a_relu_query_that_matches_no_key_gets_nothing() -> None:
    mixer, x = build("relu_attention(heads=2, rope=false)"), tokens()
    with torch.no_grad():
        mixer.qkv.q.weight.zero_()
        mixer.qkv.k.weight.zero_()
        mixer.qkv.q.bias.fill_(1.0)
        mixer.qkv.k.bias.fill_(-1.0)
        close(whole(mixer, x), mixer.out.bias.expand(T, BATCH, D))
        # All keys alike with score s q.k = sqrt(8): that many times the mean of the values.
        mixer.qkv.k.bias.fill_(1.0)
        mean = mixer.qkv.v(x).cumsum(0) / torch.arange(1, T + 1).reshape(-1, 1, 1)
        close(whole(mixer, x), mixer.out(math.sqrt(8) * mean))


@pytest.mark.parametrize(("pattern", "seen", "turned"), [
    ("attention(heads=2)", 20, 2), ("relu_attention(heads=2)", 20, 2),
    ("gqa(heads=4, groups=2)", 20, 1.5), ("mqa(heads=4)", 20, 1.25),
    ("window(size=6, heads=2)", 6, 7), ("sinks(sinks=3, size=6, heads=2)", 9, 10)])
def test_multiplications_are_those_that_torch_counts(
    pattern: str, seen: int, turned: float,
) -> None:
    mixer, x = build(pattern), tokens(time=20)[:, :1]
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        state = mixer(x[:-1], mixer.initial_state(x))[1]
        with FlopCounterMode(display=False) as counter:
            mixer.step(x[-1], state)
    weights = sum(part.weight.numel() for part in (*mixer.qkv.values(), mixer.out))
    assert counter.get_total_flops() == 2 * (weights + 2 * seen * D)
    # Turning is no matrix product: two for each channel of a query and of a key.
    assert mixer.multiplies(20) == weights + 2 * seen * D + turned * 2 * D
    assert mixer.macs(20) == 0


@pytest.mark.parametrize(("pattern", "message"), [
    ("window(size=0)", "size must be"), ("sinks(sinks=-1)", "sinks must be"),
    ("sinks(size=0)", "size must be"),
    ("gqa(heads=4, groups=3)", r"heads \(4\) must be a multiple of groups \(3\)"),
    ("attention(heads=3)", r"d \(16\) must be a multiple of heads \(3\)"),
    ("mqa(groups=2)", "has no option 'groups'")])
def test_options_that_make_no_sense_are_refused(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(pattern)


def test_every_width_has_default_heads() -> None:
    for d in range(16, 2049, 16):
        heads = head_count(d, 0)
        assert d % heads == 0
        assert d // heads >= min(d, 32)


def test_a_class_that_forgets_must_say_so() -> None:
    class Forgetful(Attention):
        def kept(self, keys: Tensor) -> Tensor:
            return keys[:, :, -3:]

    mixer = Forgetful(MixerInit(D)).double()
    with pytest.raises(AssertionError, match="forgets"):
        whole(mixer, tokens())
