"""The float model: a row equals its steps, limits hold, held-out figures mean what they say."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sterna.model.config import NAMED_CONFIGS, ModelConfig
from sterna.model.profile import S16
from sterna.model.stack.evaluate import heldout_bpb
from sterna.model.stack.language_model import LanguageModel

ODD = ModelConfig(d=12, layers=2, dff=21, vocab=65)
BYTES = ModelConfig(d=16, layers=2, dff=24)


def lively_model(config: ModelConfig, seed: int) -> LanguageModel:
    """A float64 model whose weights are large enough to reach the limits now and then."""
    model = LanguageModel(config, seed=seed).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return model


def random_tokens(config: ModelConfig, batch: int, length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, config.vocab, (batch, length), generator=generator)


@settings(max_examples=12)
@given(batch=st.integers(1, 3), length=st.integers(1, 40), seed=st.integers(0, 1000),
       started=st.booleans())
def test_forward_equals_steps(batch: int, length: int, seed: int, started: bool) -> None:
    model = lively_model(ODD, seed)
    tokens = random_tokens(ODD, batch, length, seed)
    state = model.initial_state(batch)
    if started:
        generator = torch.Generator().manual_seed(seed)
        state = tuple((h.normal_(generator=generator),) for (h,) in state)
    with torch.no_grad():
        logits, last = model(tokens, state if started else None)
        assert logits.shape == (batch, length, ODD.vocab)
        for t in range(length):
            one, state = model.step(tokens[:, t], state)
            torch.testing.assert_close(one, logits[:, t], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state, last, rtol=1e-10, atol=1e-10)


def test_a_row_may_be_cut_anywhere() -> None:
    model = lively_model(ODD, 3)
    tokens = random_tokens(ODD, 2, 50, 3)
    with torch.no_grad():
        whole, last = model(tokens)
        first, state = model(tokens[:, :17])
        second, state = model(tokens[:, 17:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state, last, rtol=1e-10, atol=1e-10)


def test_float32_stays_near_float64() -> None:
    model = LanguageModel(BYTES, seed=1)
    tokens = random_tokens(BYTES, 2, 40, 1)
    with torch.no_grad():
        narrow, _ = model(tokens)
        wide, _ = model.double()(tokens)
    # An 8-bit code may flip, so most elements agree closely, and none is far off.
    off = (narrow - wide).abs()
    assert float(off.median()) < 1e-5
    assert float(off.max()) < 0.2


def test_the_order_of_operations_is_the_specified_one() -> None:
    """One token through one layer, restated with scalar-free NumPy."""
    config = ModelConfig(d=6, layers=1, dff=9, vocab=11)
    model = lively_model(config, 5)
    weights = {name: p.weight.detach().numpy() for name, p in model.named_projections().items()}
    generator = torch.Generator().manual_seed(9)
    biases = {}
    for name, projection in model.named_projections().items():
        biases[name] = np.zeros(projection.weight.shape[0])
        if projection.bias is not None:
            with torch.no_grad():
                projection.bias.normal_(generator=generator)
            biases[name] = projection.bias.detach().numpy()

    def linear(name: str, y: np.ndarray) -> np.ndarray:
        w = weights[name].astype(np.float32)
        s = max(np.abs(w).mean(), np.float32(1e-5))
        codes = np.clip(np.rint(w / s), -1, 1)
        q = np.rint(127 * y / np.abs(y).max())
        return codes @ q / np.sqrt((q * q).mean()) * s + biases[name]

    def limit(y: np.ndarray, bound: float) -> np.ndarray:
        return np.clip(y, -bound, bound)

    def sigmoid(y: np.ndarray) -> np.ndarray:
        return np.asarray(1 / (1 + np.exp(-y)))

    h = np.linspace(-1, 1, 6)
    state = ((torch.from_numpy(h).view(1, 6),),)
    x = limit(model.embedding.weight.detach().numpy()[4], 16)
    zf, zc, zg = (limit(linear(f"layer0.mlgru.{part}", x), 8) for part in "fcg")
    h = sigmoid(zf) * h + (1 - sigmoid(zf)) * zc * sigmoid(zc)
    x = limit(x + linear("layer0.mlgru.out", sigmoid(zg) * h), 16)
    gate, up = (limit(linear(f"layer0.glu.{part}", x), 8) for part in ("gate", "up"))
    x = limit(x + linear("layer0.glu.down", limit(gate * sigmoid(gate) * up, 32)), 16)
    expected = linear("head", x)

    with torch.no_grad():
        logits, after = model.step(torch.tensor([4]), state)
    np.testing.assert_allclose(logits[0].numpy(), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(after[0][0][0].numpy(), h, rtol=1e-6, atol=1e-6)


def test_residual_stream_and_gates_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lively_model(ODD, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(100.0)
    seen: list[Tensor] = []
    for name in ("mixer", "channel"):
        getattr(model.blocks()[0], name).register_forward_pre_hook(
            lambda module, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        logits, state = model(random_tokens(ODD, 2, 9, 2))
    assert len(seen) == 2
    assert all(float(x.abs().max()) == S16.x.limit for x in seen)
    assert max(float(h.abs().max()) for (h,) in state) <= S16.z.limit
    assert bool(logits.isfinite().all())


@pytest.mark.parametrize("config", [*NAMED_CONFIGS.values(), ODD])
def test_projections_have_the_names_and_shapes_of_the_config(config: ModelConfig) -> None:
    model = LanguageModel(config)
    found = model.named_projections()
    assert {name: tuple(p.weight.shape) for name, p in found.items()} == config.projections()
    assert list(found) == list(config.projections())
    assert [name for name, p in found.items() if p.bias is None] == ["head"]
    assert model.embedding.weight.shape == (config.vocab, config.d)
    inside = sum(p.numel() for p in model.parameters())
    biases = sum(rows for name, (rows, _) in config.projections().items() if name != "head")
    assert inside == config.ternary_weights + biases + config.vocab * config.d


def test_every_parameter_learns() -> None:
    model = LanguageModel(ODD)
    logits, _ = model(random_tokens(ODD, 4, 12, 0))
    logits.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.any()), name


def test_seed_decides_the_model_and_the_global_generator_does_not() -> None:
    torch.manual_seed(1)
    first = LanguageModel(ODD, seed=4).state_dict()
    torch.manual_seed(2)
    second = LanguageModel(ODD, seed=4).state_dict()
    third = LanguageModel(ODD, seed=5).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["head.weight"], third["head.weight"])
    assert bool((first["layers.0.mixer.fcg.f.bias"] == 1).all())


def test_heldout_bpb_counts_every_byte_but_the_first_of_each_sequence() -> None:
    model = LanguageModel(BYTES, seed=1).double()
    text = bytes(random_tokens(BYTES, 1, 100, 7)[0].tolist())
    bits = []
    with torch.no_grad():
        for sequence in (text[:33], text[33:66], text[66:99]):
            state = model.initial_state(1)
            for byte, following in itertools.pairwise(sequence):
                logits, state = model.step(torch.tensor([byte]), state)
                bits.append(-float(logits[0].log_softmax(-1)[following]) / math.log(2))
    assert len(bits) == 96
    expected = sum(bits) / len(bits)
    for chunk_tokens in (1, 5, 32, 1000):
        told: list[tuple[int, int]] = []
        found = heldout_bpb(model, text, sequences=3, chunk_tokens=chunk_tokens,
                            progress=lambda *said, told=told: told.append(said))
        assert found == pytest.approx(expected, rel=1e-10)
        assert told == [(3 * min(end, 32), 96)
                        for end in range(chunk_tokens, 32 + chunk_tokens, chunk_tokens)]


def test_heldout_bpb_of_a_model_without_knowledge_is_8_bits() -> None:
    model = LanguageModel(BYTES)
    with torch.no_grad():
        model.head.weight.zero_()
    assert heldout_bpb(model, b"some text", sequences=16) == pytest.approx(8.0, abs=1e-4)
    with pytest.raises(ValueError, match="at least 2 tokens"):
        heldout_bpb(model, b"x")
