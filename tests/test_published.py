"""Published checkpoints: converted, and held to a forward pass written from the published code."""

import json
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import replace_weights
from plain_records import PlainRecords
from published_checkpoint import make_checkpoint, make_tokenizer
from published_reference import TRAPS, forward
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as torch_save_file
from tokenizers import Tokenizer, decoders, models, normalizers

from sterna.cli.main import main
from sterna.export.float.reference import RealNumbers
from sterna.export.forms.forms import build, export_onnx
from sterna.export.forms.selftest import signal_to_noise
from sterna.export.runtime.check import check_close, check_exact
from sterna.export.runtime.runtime import OnnxModel
from sterna.export.runtime.session import Session
from sterna.model.config import ModelConfig
from sterna.model.corpus import Corpus
from sterna.model.hub.bitnet import bitnet_matrix
from sterna.model.hub.convert import Published, convert, tokenizer_of
from sterna.model.hub.folder import HubError, HubFolder
from sterna.model.profile import FixedPoint
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.bounds import tensor_bounds
from sterna.model.quantized.evaluate import evaluate
from sterna.model.quantized.hgrn_bit import EPS, WIDTHS, Widths, hgrn_bit
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.real import run_real
from sterna.model.quantized.taps import TapRecorder
from sterna.model.tokens.bpe_training import train_bpe
from sterna.model.tokens.hub import HubTokenizer
from sterna.model.tokens.text import MemoryText
from sterna.model.tokens.tokenizer import BYTES
from sterna.model.torch.stack.language_model import LanguageModel
from sterna.model.torch.stack.published import load_published, published_tensors
from sterna.model.torch.training.checkpoint import load_checkpoint
from sterna.model.torch.training.quantize import evaluate_checkpoint
from sterna.model.torch.training.recipe import TrainRecipe
from sterna.model.torch.training.train import train

VOCAB = 320
TEXT = "The moth is in the mist, and the mist is grey. Zwölf ☂ im Moor.\n" * 4
WIDE = Widths(
    "wide", embedding=24, x=24, y=24, z=19, h=24, silu=24, t=24, p=21, gain=23, w=24, r=20,
    logit=24, reciprocal_bits=40, scale_frac=24, mantissa_bits=24, scale_bits=24, sigmoid_frac=22,
    sigmoid_segments=1 << 14, update_frac=22, table=FixedPoint(24, 19))
"""Formats so wide that hardly an activation is rounded to another side."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "small"
    make_checkpoint(folder, d=48, layers=3, dff=80, vocab=VOCAB)
    make_tokenizer(VOCAB).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def published(checkpoint) -> QuantizedModel:
    folder = HubFolder(checkpoint)
    return convert(folder, TEXT, tokenizer=tokenizer_of(folder))


def _real(folder: Path, tokens: np.ndarray) -> np.ndarray:
    model = Published(HubFolder(folder))
    plain = hgrn_bit(model.shape, WIDE, model.reals, defaultdict(lambda: 1.0))
    return run_real(plain.records, tokens, model.embedding(), model.matrix, model.reals,
                    plain.constants)


# Arithmetic ---------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {}, {"seed": 1, "gain": 30.0}, {"dtype": torch.float32, "ternary": True}, {"shards": 3}])
def test_the_records_in_real_numbers_are_the_published_forward(tmp_path, options):
    tensors = make_checkpoint(tmp_path / "hub", **options)
    tokens = np.random.default_rng(5).integers(0, 80, (2, 24))
    expected = forward(tensors, torch.tensor(tokens)).numpy()
    assert np.abs(_real(tmp_path / "hub", tokens) - expected).max() < 1e-5


@pytest.mark.parametrize("trap", TRAPS)
def test_who_walks_into_a_trap_computes_something_else(tmp_path, trap):
    ternary = {"dtype": torch.float32, "ternary": True} if trap == "twice" else {}
    tensors = make_checkpoint(tmp_path / "hub", **ternary)
    tokens = np.random.default_rng(5).integers(0, 80, (2, 24))
    trapped = forward(tensors, torch.tensor(tokens), trap).numpy()
    assert np.abs(_real(tmp_path / "hub", tokens) - trapped).max() > 5e-3


def test_two_channels_far_larger_than_the_others_take_no_digits_from_them(tmp_path):
    tensors = make_checkpoint(tmp_path / "hub", vocab=256)
    for channel, size in ((3, 3000.0), (7, -1000.0)):
        tensors["model.embeddings.weight"][:, channel] = size
        for name, value in tensors.items():
            if name.endswith(("attn_norm.weight", "mlp_norm.weight", "model.norm.weight",
                              "o_proj.weight", "down_proj.weight")):
                value[channel] = 0
    torch_save_file(tensors, tmp_path / "hub" / "model.safetensors")
    tokens = np.random.default_rng(5).integers(0, 256, (2, 24))
    expected = forward(tensors, torch.tensor(tokens)).numpy()
    model = convert(HubFolder(tmp_path / "hub"), TEXT, tokenizer=BYTES)
    assert model.row.bits == 16
    logits, _ = IntegerModel(model).run(tokens)
    error = logits * 2.0**-model.logit.frac - expected
    assert np.sqrt(np.mean(error**2)) < 0.15 * np.sqrt(np.mean(expected**2))


def test_a_gain_of_zero_is_one(tmp_path):
    """In the norm of the output gate it is divided by."""
    tensors = make_checkpoint(tmp_path / "hub", vocab=256)
    tensors["model.layers.1.attn.g_norm.weight"][5] = 0
    torch_save_file(tensors, tmp_path / "hub" / "model.safetensors")
    tokens = np.random.default_rng(5).integers(0, 256, (1, 12))
    expected = forward(tensors, torch.tensor(tokens)).numpy()
    model = convert(HubFolder(tmp_path / "hub"), TEXT, tokenizer=BYTES)
    logits, _ = IntegerModel(model).run(tokens)
    assert np.abs(logits * 2.0**-model.logit.frac - expected).max() < 0.05


@pytest.mark.parametrize("seed", [0, 1, 3, 4])      # with 2 an activation is next to a half
def test_wide_integers_are_the_published_forward(tmp_path, seed):
    tensors = make_checkpoint(tmp_path / "hub", seed=seed, d=32, layers=2, dff=40, vocab=256)
    tokens = np.random.default_rng(seed).integers(0, 256, (1, 6))
    expected = forward(tensors, torch.tensor(tokens)).numpy()
    model = convert(HubFolder(tmp_path / "hub"), bytes(tokens[0].tolist()), tokenizer=BYTES,
                    widths=WIDE, sequences=1)
    logits, _ = IntegerModel(model).run(tokens)
    assert np.abs(logits * 2.0**-model.logit.frac - expected).max() < 1e-5


@pytest.mark.parametrize(("name", "most"), [("P24", 0.02), ("S16", 0.02), ("C12", 0.03)])
def test_the_error_of_a_profile(checkpoint, name, most):
    folder = HubFolder(checkpoint)
    model = convert(folder, TEXT, tokenizer=tokenizer_of(folder), widths=WIDTHS[name])
    tensors = {name: torch.tensor(value) for name, value in _float32(folder).items()}
    tokens = np.random.default_rng(3).integers(0, VOCAB, (2, 32))
    expected = forward(tensors, torch.tensor(tokens)).numpy()
    logits, _ = IntegerModel(model).run(tokens)
    error = logits * 2.0**-model.logit.frac - expected
    assert np.sqrt(np.mean(error**2)) < most * np.sqrt(np.mean(expected**2))


def _float32(folder: HubFolder) -> dict[str, np.ndarray]:
    return {name: folder.tensor(name) for name in folder.names}


def _extreme(model: QuantizedModel, case: str) -> QuantizedModel:
    """The model with every embedding or gain at an end of its range, or all weights alike."""
    rng = np.random.default_rng(2)
    match case:
        case "embedding":
            ends = [model.row.min, model.row.max]
            wild = rng.choice(ends, model.embedding.shape)
            return replace(model, table=wild.astype(np.int32))
        case "gains":
            return replace(model, vectors={name: np.full_like(each, np.abs(each).max())
                                           for name, each in model.vectors.items()})
        case "weights":
            return replace_weights(model, 1)
    return model


@pytest.mark.parametrize("case", ["", "embedding", "gains", "weights"])
def test_plain_integers_without_bounds_agree_and_no_value_passes_its_bound(published, case):
    model = _extreme(published, case)
    tokens, taps = [1, 70, 71, 319], TapRecorder()
    logits, state = IntegerModel(model).run(np.array([tokens]), tap=taps)
    plain = PlainRecords(model)
    assert [plain.step(token) for token in tokens] == logits[0].tolist()
    assert list(plain.states.values()) == state[:, 0].tolist()
    bounds = tensor_bounds(model.records, model.projections, vectors=model.vectors)
    for name in bounds:
        assert np.abs(taps[name]).max() <= bounds[name], name


def test_the_plain_records_of_a_model_of_our_own_agree(odd_model):
    tokens = np.arange(0, 65, 13)
    logits, _ = IntegerModel(odd_model).run(tokens[None])
    plain = PlainRecords(odd_model)
    assert [plain.step(token) for token in tokens] == logits[0].tolist()


def test_a_row_of_zeros_stays_zero(published):
    model = replace(published, table=np.zeros_like(published.embedding))
    logits, state = IntegerModel(model).run(np.array([[5, 6]]))
    assert not logits.any()
    assert not state.any()


@pytest.mark.parametrize("one_token", [False, True])
def test_the_graph_is_the_reference(published, one_token):
    tokens = np.random.default_rng(1).integers(0, VOCAB, (3, 20))
    report = check_exact(published, build(published, one_token=one_token), tokens)
    assert report.passed, report.first


@pytest.mark.parametrize("one_token", [False, True])
def test_the_fast_form_is_the_published_forward(checkpoint, published, one_token):
    folder = HubFolder(checkpoint)
    tokens = np.random.default_rng(1).integers(0, VOCAB, (3, 20))
    proto = build(published, "fast", one_token=one_token)
    got, _ = OnnxModel(proto).run(tokens)
    tensors = {name: torch.tensor(value) for name, value in _float32(folder).items()}
    assert signal_to_noise(forward(tensors, torch.tensor(tokens)).numpy(), got) > 30
    assert check_close(published, proto, tokens) > 30
    real, gains = RealNumbers.of(published), Published(folder).reals
    for name, values in real.vectors.items():
        np.testing.assert_allclose(values, gains[name], atol=2e-3)
    for name, width in (("layer1.glu.down_root", 80), ("layer1.mlgru.g.energy", 1)):
        assert real.constants[name] == pytest.approx(EPS * width, rel=1e-3)


def test_a_wrong_gain_in_a_graph_is_named(published):
    name = "layer1.mlgru.f.w"
    wrong = published.vectors[name].copy()
    wrong[3] += 1 << 12
    other = replace(published, vectors={**published.vectors, name: wrong})
    tokens = np.random.default_rng(1).integers(0, VOCAB, (2, 10))
    report = check_exact(published, build(other), tokens)
    assert report.first is not None
    assert report.first.tensor == name


# The float model ----------------------------------------------------------------------


def test_the_float_model_is_the_published_forward_with_its_gradients(tmp_path):
    """Those of every parameter; a step is the forward pass on a row of one."""
    tensors = make_checkpoint(tmp_path / "hub", dtype=torch.float32)
    model = load_published(HubFolder(tmp_path / "hub")).double()
    tokens = torch.from_numpy(np.random.default_rng(5).integers(0, 80, (2, 24)))
    logits, _ = model(tokens)
    wanted = {name: value.double().requires_grad_() for name, value in tensors.items()}
    expected = forward(wanted, tokens)
    assert (logits - expected).abs().max() < 1e-5
    slope = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).double()
    (logits * slope).sum().backward()
    (expected * slope).sum().backward()
    places = {each.data_ptr(): each.grad for each in model.parameters()}
    mine = {name: places[each.data_ptr()] for name, each in published_tensors(model).items()}
    assert mine.keys() == wanted.keys()
    for name, each in wanted.items():
        assert (mine[name] - each.grad).norm() <= 1e-5 * each.grad.norm(), name
    state, rows = model.initial_state(2), []
    for token in tokens.T:
        row, state = model.step(token, state)
        rows.append(row)
    torch.testing.assert_close(torch.stack(rows, 1), logits)


def test_tokens_before_a_text_that_starts_anew_are_no_matter(tmp_path):
    """So a batch may be padded on the left."""
    make_checkpoint(tmp_path / "hub")
    model = load_published(HubFolder(tmp_path / "hub")).double()
    model.reset_at(1)
    text = torch.tensor([[1, 20, 30, 40]])
    padded = torch.cat([torch.tensor([[5, 9, 2]]), text], dim=1)
    torch.testing.assert_close(model(padded)[0][:, 3:], model(text)[0])


def test_a_trained_model_goes_to_a_folder_and_back(tmp_path, capsys):
    """And the integers of the folder predict as well as the float model."""
    config = ModelConfig(d=32, layers=2, dff=48, mixer="hgrn_bit")
    corpus = Corpus("text", (TEXT * 8).encode(), (TEXT * 2).encode())
    trained = train(config, corpus, run_dir=tmp_path / "run", steps=60, quiet=True,
                    recipe=TrainRecipe(batch=4, window=32))
    assert main(["push-folder", str(tmp_path / "run"), "-o", str(tmp_path / "hub")]) == 0
    assert "generation_config.json" in capsys.readouterr().out
    folder = HubFolder(tmp_path / "hub")
    assert tokenizer_of(folder) is BYTES
    checkpoint = load_checkpoint(trained.checkpoint)
    model = checkpoint.model()
    again = load_published(folder)
    assert again.config == config
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    assert f"| steps | {trained.step} |" in (tmp_path / "hub" / "README.md").read_text()
    integers = convert(folder, TEXT * 2, tokenizer=tokenizer_of(folder))
    found = evaluate(integers, TEXT * 2).bits_per_byte
    assert found < 4
    plain = evaluate_checkpoint(checkpoint, (TEXT * 2).encode()).bits_per_byte
    assert found == pytest.approx(plain, abs=0.02)
    assert main(["quantize", str(tmp_path / "run"), "-o", str(tmp_path / "q.safetensors")]) == 2
    assert "sterna push-folder, then sterna convert" in capsys.readouterr().err
    with pytest.raises(ValueError, match="only a model of the mixer hgrn_bit has the published"):
        published_tensors(LanguageModel(replace(config, residual="reversible")))
    with pytest.raises(ValueError, match="has a channel mixer of its own"):
        ModelConfig(d=32, layers=2, dff=48, mixer="hgrn_bit", channel="relu2")


def test_a_model_of_other_tokens_is_not_pushed(tmp_path, capsys):
    config = ModelConfig(d=16, layers=1, dff=16, vocab=128, mixer="hgrn_bit")
    train(config, Corpus("text", b"moth " * 99, b"mist " * 20), run_dir=tmp_path / "run", steps=1,
          quiet=True, recipe=TrainRecipe(batch=2, window=8))
    assert main(["push-folder", str(tmp_path / "run"), "-o", str(tmp_path / "hub")]) == 2
    assert "must have all 256 bytes, got a tokenizer of 128" in capsys.readouterr().err
    assert not (tmp_path / "hub").exists()


def test_byte_pairs_go_with_a_pushed_model(tmp_path):
    pairs = train_bpe([TEXT.encode()] * 2, 290, end_of_text=True)
    config = ModelConfig(d=16, layers=1, dff=16, vocab=290, mixer="hgrn_bit")
    train(config, MemoryText(Corpus("text", TEXT.encode() * 4, TEXT.encode()), pairs), steps=1,
          run_dir=tmp_path / "run", quiet=True, recipe=TrainRecipe(batch=2, window=8))
    assert main(["push-folder", str(tmp_path / "run"), "-o", str(tmp_path / "hub")]) == 0
    found = tokenizer_of(HubFolder(tmp_path / "hub"))
    text = TEXT + "na\u00efve <|endoftext|> \u65e5  \n1x"
    assert found.encode(text).tolist() == pairs.encode(text).tolist()
    assert (found.spellings, found.end_of_text) == (pairs.spellings, 289)
    settings = json.loads((tmp_path / "hub" / "generation_config.json").read_text())
    assert settings["eos_token_id"] == 289


# Files and tokens ---------------------------------------------------------------------


def test_a_converted_model_survives_the_file(published, tmp_path):
    back = load_model(published.save(tmp_path / "m.safetensors"))
    assert back.to_bytes() == published.to_bytes()
    assert (back.records, back.profile_name) == (published.records, "P24")
    assert back.tokenizer.encode(TEXT).tolist() == published.tokenizer.encode(TEXT).tolist()
    with pytest.raises(ValueError, match=r"another architecture .* has no gateware"):
        _ = back.config


def test_evaluation_begins_with_the_token_that_stands_before_a_text(published):
    tokens = published.tokenizer.encode(TEXT)
    result = evaluate(published, TEXT, sequences=1)
    assert result.predictions == len(tokens)
    row = np.concatenate([[1], tokens])[None]
    logits, _ = IntegerModel(published).run(row[:, :-1])
    real = logits[0] * 2.0**-published.logit.frac
    chosen = real[np.arange(len(tokens)), tokens]
    bits = (np.log(np.exp(real).sum(-1)) - chosen).sum() / np.log(2)
    assert result.bits_per_byte == pytest.approx(bits / (1 + len(TEXT.encode())))
    assert result.saturated == {}


def test_evaluation_counts_values_that_leave_their_formats(published):
    found = evaluate(_extreme(published, "embedding"), TEXT).saturated
    assert "layer0.mlgru.root.y" in found
    assert not any(name.endswith((".narrow", ".f.z")) for name in found)


# Bad input ----------------------------------------------------------------------------


def _config(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return change


def _tensors(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        tensors = {name: value.copy() for name, value in load_file(folder / SHARD).items()}
        change(tensors)
        save_file(tensors, folder / SHARD)
    return rewrite


SHARD = "model-00002-of-00003.safetensors"
OTHER = "model-00003-of-00003.safetensors"
NAME = "model.layers.0.attn.i_proj.norm.weight"
WRONG = {
    "no configuration": (lambda f: (f / "config.json").unlink(), "it has no config.json"),
    "cut configuration": (lambda f: (f / "config.json").write_text("{"), "cannot read it"),
    "another architecture": (_config(model_type="llama"), "must be 'hgrn_bit', got 'llama'"),
    "option": (_config(use_short_conv=True), "use_short_conv must be False, got True"),
    "size": (_config(hidden_size="x"), "d must be a whole number"),
    "missing size": (lambda f: (f / "config.json").write_text('{"model_type": "hgrn_bit"}'),
                     "the field 'hidden_size' is missing"),
    "no weights": (lambda f: (f / "model.safetensors.index.json").unlink(), "there are no weights"),
    "missing shard": (lambda f: (f / SHARD).unlink(), f"{SHARD}: a file of the checkpoint is mis"),
    "cut shard": (lambda f: (f / SHARD).write_bytes((f / SHARD).read_bytes()[:-9]),
                  "cut off or damaged"),
    "shard of nothing": (lambda f: (f / SHARD).write_bytes(b"abc"), "cut off in its header"),
    "swapped shard": (lambda f: (f / SHARD).write_bytes((f / OTHER).read_bytes()),
                      "is in model-00002-of-00003.safetensors as well"),
    "missing tensor": (_tensors(lambda t: t.pop(NAME)), f"the tensor {NAME} is missing"),
    "extra tensor": (_tensors(lambda t: t.update(extra=t[NAME])), "unknown tensor extra"),
    "misshapen tensor": (_tensors(lambda t: t.update({NAME: t[NAME][:5]})),
                         r"must have the shape \[32\], got \[5\]"),
    "integers": (_tensors(lambda t: t.update({NAME: t[NAME].astype(np.int32)})),
                 "must be floating-point numbers of 16 to 64 bits, got I32"),
    "not a number": (_tensors(lambda t: t[NAME].__setitem__(3, np.nan)),
                     f"{NAME} holds a value that is not finite"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_folder_is_refused(tmp_path, what):
    make_checkpoint(tmp_path / "hub", d=32, layers=1, dff=40, vocab=256, shards=3,
                    dtype=torch.float32)
    change, message = WRONG[what]
    change(tmp_path / "hub")
    with pytest.raises(HubError, match=message):
        Published(HubFolder(tmp_path / "hub"))


def test_tokenizers_that_do_not_fit_are_refused(checkpoint, tmp_path, capsys):
    folder = HubFolder(checkpoint)
    with pytest.raises(ValueError, match="the tokenizer has 256 tokens, and the model 320"):
        convert(folder, TEXT, tokenizer=BYTES)
    lower = make_tokenizer(VOCAB)
    lower.normalizer = normalizers.Sequence([normalizers.Lowercase(), lower.normalizer])
    with pytest.raises(ValueError, match="does not give the text back"):
        convert(folder, TEXT, tokenizer=HubTokenizer(lower.to_str()))
    shutil.copytree(checkpoint, tmp_path / "hub")
    lower.save(str(tmp_path / "hub" / "tokenizer.json"))
    assert main(["convert", str(tmp_path / "hub"), "-o", str(tmp_path / "m"), "--quiet"]) == 2
    refused = capsys.readouterr().err
    assert "the bundled text: the tokenizer does not give the text back" in refused
    assert "give another text with --calibrate" in refused


def words() -> str:
    """As BERT's: it changes letters, and its tokens do not stand for bytes."""
    made = Tokenizer(models.WordPiece(vocab={"[UNK]": 0, "the": 1, "##m": 2}, unk_token="[UNK]"))
    made.normalizer, made.decoder = normalizers.BertNormalizer(), decoders.WordPiece()
    return str(made.to_str())


@pytest.mark.parametrize(("content", "reason"), [
    (None, "there is no tokenizer.json"), (words(), "must be byte-level")])
def test_a_model_without_a_tokenizer_takes_the_numbers_of_tokens(
    content: str | None, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture,
) -> None:
    make_checkpoint(tmp_path / "hub", d=32, layers=1, dff=40, vocab=80)
    if content is not None:
        (tmp_path / "hub" / "tokenizer.json").write_text(content)
    file, tokens = tmp_path / "m.safetensors", [3, 17, 79, 0, 5, 5, 12, 40]
    assert main(["convert", str(tmp_path / "hub"), "-o", str(file), "--quiet"]) == 0
    said = capsys.readouterr().err
    assert reason in said
    assert "the model has no tokenizer, and its texts are numbers of tokens" in said
    assert "calibrated with random tokens" in said
    model = load_model(file)
    assert (model.tokenizer.kind, model.tokenizer.vocab) == ("numbers", 80)
    found = evaluate(model, np.array(tokens), sequences=1)
    assert found == evaluate(model, "3 17 79 0 5 5 12 40", sequences=1)
    logits, _ = IntegerModel(model).run(np.array([tokens]))
    real = logits[0, :-1] * 2.0**-model.logit.frac
    nats = np.log(np.exp(real).sum(-1)) - real[np.arange(7), tokens[1:]]
    assert found.bits_per_byte == pytest.approx(nats.mean() / np.log(2))     # a token for a byte

    graph = export_onnx(model, tmp_path / "m.onnx")
    session = Session(graph)
    (written,) = session.complete(tokens, tokens=4, temperature=0)
    assert session.complete(["3 17 79 0 5 5 12 40"], tokens=4, temperature=0) == [written]
    assert session.complete([tokens, tokens[:2]], tokens=4, temperature=0)[0] == written
    assert all(0 <= int(each) < 80 for each in written.split())
    assert len(written.split()) == 4
    prompt = ["--prompt", "3 17 79 0 5 5 12 40", "--tokens", "4", "--temperature", "0"]
    assert main(["generate", str(graph), *prompt, "--quiet"]) == 0
    assert capsys.readouterr().out.split()[-4:] == written.split()
    (tmp_path / "tokens.txt").write_text("3 17 79 0\n5 5 12 40\n")
    assert main(["evaluate", str(file), "--text", str(tmp_path / "tokens.txt"), "--quiet"]) == 0
    assert "bits per token" in capsys.readouterr().out

    for command, message in (
            (["generate", str(file), "--prompt", "The moth"],
             "--prompt 'The moth': the model has no tokenizer: expected numbers of tokens, such as "
             "'3 17', got 'The'"),
            (["generate", str(file), "--prompt", "3 80"], "tokens must be from 0 to 79"),
            (["generate", str(file), "--prompt", "9" * 20], "expected numbers of tokens"),
            (["evaluate", str(file)], "give --text a file with numbers of tokens")):
        assert main([*command, "--quiet"]) == 2
        refused = capsys.readouterr().err
        assert message in refused
        assert refused.count("\n") == 1


def test_a_folder_of_another_kind_is_named(checkpoint, tmp_path, capsys):
    def refusal(*arguments: object) -> str:
        assert main([*map(str, arguments), "--quiet"]) == 2
        return capsys.readouterr().err

    for command in (("evaluate",), ("generate",), ("info",), ("export", "-o", tmp_path / "m.onnx"),
                    ("quantize", "-o", tmp_path / "m.safetensors")):
        assert main([command[0], str(checkpoint), *map(str, command[1:])]) == 2
        assert f"{checkpoint} is a published checkpoint: " in capsys.readouterr().err
    assert "is a file: give the folder" in refusal(
        "convert", checkpoint / "config.json", "-o", tmp_path / "m.safetensors")
    (tmp_path / "run.json").write_text("{}")
    assert "is the folder of a training run: sterna quantize" in refusal(
        "convert", tmp_path, "-o", tmp_path / "m.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_files_of_torch_are_read_and_code_in_them_is_not_run(tmp_path):
    folder = tmp_path / "hub"
    tensors = make_checkpoint(folder, d=32, layers=1, dff=40, vocab=256)
    plain = _float32(HubFolder(folder))
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    found = _float32(HubFolder(folder))
    assert found.keys() == plain.keys()
    assert all(np.array_equal(found[name], plain[name]) for name in plain)
    torch.save({"w": _Code(tmp_path / "ran")}, folder / "pytorch_model.bin")
    with pytest.raises(HubError, match="not tensors alone, or damaged: nothing of it was run"):
        HubFolder(folder)
    assert not (tmp_path / "ran").exists()


class _Code:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self):
        return Path.touch, (self._path,)


# Matrices of others -------------------------------------------------------------------


@pytest.mark.parametrize(("linear_class", "mode"), [
    ("bitlinear", "offline"), ("autobitlinear", "offline"), ("autobitlinear", "online")])
def test_a_bitnet_matrix_is_what_its_own_code_computes_with(tmp_path, linear_class, mode):
    """Packed as transformers does: four rows apart in a byte, the code plus one."""
    rng = np.random.default_rng(4)
    codes = rng.integers(-1, 2, (12, 20)).astype(np.float32)
    packed = np.zeros((3, 20), np.uint8)
    for i in range(4):
        packed |= (codes[3 * i:3 * i + 3] + 1).astype(np.uint8) << 2 * i
    scale = np.array([0.37], np.float32)
    value = {"bitlinear": 1 / 0.37, "autobitlinear": 0.37}[linear_class]
    tensors = {"q.weight": packed, "q.weight_scale": scale}
    if mode == "online":
        latent = codes * 0.5 + rng.uniform(-0.1, 0.1, codes.shape).astype(np.float32)
        tensors, value = {"q.weight": latent}, float(np.abs(latent).mean())
    save_file({**tensors, "q.bias": np.ones(12, np.float32)}, tmp_path / "model.safetensors")
    config = {"quant_method": "bitnet", "linear_class": linear_class, "quantization_mode": mode}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    matrix = bitnet_matrix(HubFolder(tmp_path), "q")
    np.testing.assert_array_equal(matrix.weight, codes)
    assert matrix.scale == pytest.approx(value)
    assert matrix.bias.tolist() == [1.0] * 12
    with pytest.raises(HubError, match=r"the tensor k\.weight is missing"):
        bitnet_matrix(HubFolder(tmp_path), "k")
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "gptq"}}')
    with pytest.raises(HubError, match="quant_method must be 'bitnet', got 'gptq'"):
        bitnet_matrix(HubFolder(tmp_path), "q")


# Commands -----------------------------------------------------------------------------


def test_commands_from_a_folder_to_text(checkpoint, native_ops, tmp_path, capsys):
    def run(*arguments: object) -> str:
        assert main([*map(str, arguments), "--quiet"]) == 0
        return capsys.readouterr().out

    text, model = tmp_path / "text.txt", tmp_path / "new" / "m.safetensors"
    text.write_text(TEXT)
    assert "P24" in run("convert", checkpoint, "-o", model, "--calibrate", text)
    found = load_model(model)
    assert found.provenance == {"source": "small", "calibration_tokens": 208}
    reference = evaluate(found, TEXT)
    said = run("evaluate", model, "--text", text)
    assert said.startswith(f"{reference.bits_per_byte:.4f} bits per byte over 208 predictions")
    assert run("evaluate", model, "--text", text, "--onnx", "exact")[:6] == said[:6]
    assert "0 mismatches" in run("export", model, "-o", tmp_path / "m.onnx", "--check", 40)
    written = run("generate", model, "--prompt", "The moth", "--tokens", 5)
    assert written.startswith("The moth")
    for options in ([], ["--ops-library", native_ops]):
        assert run("generate", tmp_path / "m.onnx", "--prompt", "The moth", "--tokens", 5,
                   *options) == written
    fast = tmp_path / "fast.onnx"
    assert "dB" in run("export", model, "-o", fast, "--form", "fast", "--check", 40)
    assert main(["verilog", str(model), "--unit", "core", "-o", str(tmp_path / "v")]) == 2
    said = capsys.readouterr().err.splitlines()
    assert "a model of another architecture than Sterna's own" in said[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "fast.onnx", "m.onnx", "new", "text.txt"]
