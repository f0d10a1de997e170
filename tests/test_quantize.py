"""From float to integers, and how well the integers predict."""

from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import refusal
from torch.nn import functional

from sterna.model.config import ModelConfig
from sterna.model.corpus import builtin_corpus
from sterna.model.profile import C12, PROFILES
from sterna.model.quantized.evaluate import evaluate, surprisal_bits
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.synthetic import random_model
from sterna.model.tokenizer import encode
from sterna.model.torch.network.quantizers import ternarize
from sterna.model.torch.stack.evaluate import heldout_bpb
from sterna.model.torch.stack.language_model import LanguageModel
from sterna.model.torch.training.checkpoint import Checkpoint, save_checkpoint
from sterna.model.torch.training.quantize import quantize, quantize_checkpoint

NANO = ModelConfig.named("nano")


@pytest.fixture(scope="module")
def float_model():
    """An untrained model whose biases and embedding are wide enough to matter."""
    model = LanguageModel(NANO, seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, linear in model.named_projections().items():
            linear.weight.mul_(3.0)
            linear.gain.uniform_(0.7, 1.7, generator=generator)
            if linear.bias is not None and not name.endswith(".f"):
                linear.bias.normal_(0, 0.3, generator=generator)
    return model


def test_codes_and_scales_are_those_of_training(float_model, profile):
    quantized = quantize(float_model, profile)
    for name, linear in float_model.named_projections().items():
        p, fmt = quantized.projections[name], profile.output_format(name)
        used = ternarize(linear.weight * linear.gain).detach().numpy()
        np.testing.assert_array_equal(np.sign(used), p.weight, err_msg=name)
        # What (k, shift) stand for, against what training multiplies with.
        scale = p.k * 2.0 ** (profile.scale_bits - profile.mantissa_bits - p.shift)
        exact = np.abs(used).max() * np.sqrt(used.shape[1]) / 127 * 2.0**fmt.frac
        assert scale == pytest.approx(exact, rel=2.0**-profile.mantissa_bits)


def test_the_integer_model_follows_the_float_model(float_model, profile):
    tokens = encode("def f(x): return x + 1\n" * 4)[None, :]
    with torch.no_grad():
        expected, _ = float_model(torch.from_numpy(tokens))
    logits, _ = IntegerModel(quantize(float_model, profile)).run(tokens)
    real = logits / 2.0**profile.logit.frac
    error = np.abs(real - expected.numpy()).mean() / expected.std().item()
    assert error < {"S16": 0.02, "C12": 0.15}[profile.name]


def saved(config: ModelConfig, folder: Path) -> Path:
    """An untrained model for the built-in text in ASCII."""
    corpus, path = builtin_corpus().as_ascii(), folder / "checkpoint.pt"
    save_checkpoint(Checkpoint(
        config, {}, corpus.name, corpus.sha256, 0, 0, 0.0,
        LanguageModel(config, seed=3).state_dict(), {}, ()), path)
    return path


def test_mixers_without_an_integer_form_are_refused_before_anything_is_measured(tmp_path, capsys):
    config = ModelConfig(d=4, layers=1, dff=4, vocab=128, mixer="attention", weights="float")
    path = saved(config, tmp_path)
    why = ("only mlgru with glu, pre-norm and ternary weights have an integer form; this model has "
           "mixer attention, weights float")
    with pytest.raises(ValueError, match=why):
        quantize_checkpoint(path, C12, note=lambda line: pytest.fail(line))
    with pytest.raises(ValueError, match=why):
        quantize(LanguageModel(config), C12)
    assert why in refusal(capsys, "quantize", path, "-o", tmp_path / "m.safetensors", "--quiet")


def test_an_all_zero_matrix_can_be_quantized(profile):
    model = LanguageModel(NANO, seed=0)
    with torch.no_grad():
        model.named_projections()["layer0.glu.up"].weight.zero_()
    p = quantize(model, profile).projections["layer0.glu.up"]
    assert not p.weight.any()
    assert 1 <= p.shift <= profile.max_shift


@pytest.mark.parametrize(("name", "value", "message"), [
    ("layers.1.mixer.fcg.c.bias", "nan", r"layer1\.mlgru\.c.*not every value is finite"),
    ("embedding.weight", "nan", r"embedding.*not every value is finite"),
    ("head.weight", "inf", "head: a projection's scale must be positive")])
def test_values_that_are_not_finite_are_named(name, value, message):
    model = LanguageModel(NANO, seed=0)
    with torch.no_grad():
        model.get_parameter(name).view(-1)[0] = float(value)
    with pytest.raises(ValueError, match=message):
        quantize(model, PROFILES["S16"])


def test_surprisal_is_torch_cross_entropy():
    rng = np.random.default_rng(0)
    logits = rng.integers(-(1 << 15), 1 << 15, (20, 256))
    targets = rng.integers(0, 256, 20)
    expected = functional.cross_entropy(
        torch.from_numpy(logits / 256.0), torch.from_numpy(targets), reduction="none")
    np.testing.assert_allclose(
        surprisal_bits(logits, targets, 8), expected.numpy() / np.log(2), rtol=1e-12)


def test_evaluation_carries_the_state_of_every_sequence(profile):
    model = random_model(ModelConfig(d=16, layers=2, dff=24), profile, 2)
    text = bytes(np.random.default_rng(1).integers(0, 256, 95, dtype=np.uint8))
    result = evaluate(model, text, sequences=3)
    bits = []
    for start in (0, 31, 62):
        part = encode(text)[start:start + 31]
        logits, _ = IntegerModel(model).run(part[None, :-1])
        bits += surprisal_bits(logits[0], part[1:], profile.logit.frac).tolist()
    assert result.predictions == len(bits) == 90
    assert result.bits_per_byte == pytest.approx(np.mean(bits), rel=1e-12)
    with pytest.raises(ValueError, match="at least 2 tokens, got 1"):
        evaluate(model, b"x")


def test_float_and_integer_figures_are_measured_alike(float_model):
    text = b"The quick brown fox jumps over the lazy dog. " * 8
    integer = evaluate(quantize(float_model, PROFILES["S16"]), text, sequences=4)
    assert integer.bits_per_byte == pytest.approx(
        heldout_bpb(float_model, text, sequences=4), abs=0.02)


def test_a_checkpoint_of_the_built_in_text_in_ascii_is_measured_on_it(tmp_path):
    path = saved(ModelConfig(d=4, layers=1, dff=4, vocab=128), tmp_path)
    held = quantize_checkpoint(path, C12).provenance["heldout"]
    assert held["predictions"] == 16 * (len(builtin_corpus().as_ascii().heldout) // 16 - 1)
    assert held["integer_bpb"] == pytest.approx(held["float_bpb"], abs=0.1)
