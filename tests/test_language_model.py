"""The float model: a row equals its steps, limits hold, held-out figures mean what they say."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from conftest import ODD
from torch import Tensor

from sterna.model.config import NAMED_CONFIGS, ModelConfig
from sterna.model.torch.stack.evaluate import heldout_bpb
from sterna.model.torch.stack.language_model import LanguageModel

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


HYBRID = replace(ODD, mixer="2*mlgru + attention", layers=3)


@pytest.mark.parametrize("config", [
    ODD, *(replace(HYBRID, norm=norm, weights=weights)
           for norm in ("pre", "post") for weights in ("ternary", "float"))],
    ids=["mlgru", "pre", "pre-float", "post", "post-float"])
@pytest.mark.parametrize(("batch", "length", "before"), [(1, 40, 0), (3, 9, 7), (2, 1, 1)])
@torch.no_grad()
def test_forward_equals_steps(config, batch, length, before):
    """From any state, so a row may be cut anywhere."""
    model = lively_model(config, length)
    tokens = random_tokens(config, batch, before + length, length)
    state = model(tokens[:, :before])[1] if before else model.initial_state(batch)
    logits, last = model(tokens[:, before:], state if before else None)
    assert logits.shape == (batch, length, config.vocab)
    for t in range(length):
        one, state = model.step(tokens[:, before + t], state)
        torch.testing.assert_close(one, logits[:, t], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(state, last, rtol=1e-8, atol=1e-8)
    assert model.state_is_bounded == (config is ODD)


def test_float32_stays_near_float64():
    model = LanguageModel(BYTES, seed=1)
    tokens = random_tokens(BYTES, 2, 40, 1)
    with torch.no_grad():
        narrow, _ = model(tokens)
        wide, _ = model.double()(tokens)
    # An 8-bit code may flip, so most elements agree closely, and none is far off.
    off = (narrow - wide).abs()
    assert float(off.median()) < 1e-5
    assert float(off.max()) < 0.2


@pytest.mark.parametrize("config", [*NAMED_CONFIGS.values(), ODD])
def test_projections_have_the_names_and_shapes_of_the_config(config):
    model = LanguageModel(config)
    found = model.named_projections()
    assert {name: tuple(p.weight.shape) for name, p in found.items()} == config.projections()
    assert list(found) == list(config.projections())
    assert model.embedding.weight.shape == (config.vocab, config.d)
    inside = sum(p.numel() for p in model.parameters())
    biases_and_gains = sum(rows + 1 for rows, _ in config.projections().values())
    assert inside == config.ternary_weights + biases_and_gains + config.vocab * config.d


def test_seed_decides_the_model_and_the_global_generator_does_not():
    torch.manual_seed(1)
    first = LanguageModel(ODD, seed=4).state_dict()
    torch.manual_seed(2)
    second = LanguageModel(ODD, seed=4).state_dict()
    third = LanguageModel(ODD, seed=5).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["head.weight"], third["head.weight"])
    assert bool((first["layers.0.mixer.fcg.f.bias"] == 1).all())


def test_heldout_bpb_counts_every_byte_but_the_first_of_each_sequence():
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


def test_heldout_bpb_of_a_model_without_knowledge_is_8_bits():
    model = LanguageModel(BYTES)
    with torch.no_grad():
        model.head.weight.zero_()
    assert heldout_bpb(model, b"some text", sequences=16) == pytest.approx(8.0, abs=1e-4)
    with pytest.raises(ValueError, match="at least 2 tokens"):
        heldout_bpb(model, b"x")
