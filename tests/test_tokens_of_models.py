"""Models whose tokens are byte pairs: their file, and bits per byte."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from command_line import settings

from sterna.cli.main import main
from sterna.export.forms.forms import build, export_onnx
from sterna.export.runtime.runtime import OnnxModel
from sterna.export.runtime.session import Session
from sterna.hw.core.compute.request import Request
from sterna.model.config import ModelConfig
from sterna.model.profile import C12
from sterna.model.quantized import QuantizedFileError, QuantizedModel, load_model
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.quantized.evaluate import evaluate, surprisal_bits
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.synthetic import random_model
from sterna.model.tokens.bpe import BytePairTokenizer
from sterna.model.tokens.bpe_training import train_bpe
from sterna.model.tokens.files import load_tokenizer
from sterna.model.tokens.tokenizer import BYTES
from sterna.model.torch.stack.evaluate import heldout_bpb
from sterna.model.torch.stack.language_model import LanguageModel
from sterna.sim.core.reference import answer

TEXT = bundled_heldout()[:6000]
TOKENIZER = train_bpe([TEXT], 300)
SHAPE = ModelConfig(d=8, layers=1, dff=12, vocab=300)


@pytest.fixture(scope="module")
def model() -> QuantizedModel:
    return replace(random_model(SHAPE, C12), tokenizer=TOKENIZER)


def test_the_file_holds_the_tokenizer(model: QuantizedModel, tmp_path: Path) -> None:
    read = load_model(model.save(tmp_path / "m.safetensors"))
    assert read.tokenizer.to_json() == TOKENIZER.to_json()
    assert read.to_bytes() == model.to_bytes()
    assert len(model.to_bytes()) < len(random_model(SHAPE, C12).to_bytes()) + 1000


def test_a_model_may_know_fewer_bytes_than_there_are(tmp_path: Path) -> None:
    path = random_model(replace(SHAPE, vocab=128), C12).save(tmp_path / "m.safetensors")
    found = load_model(path).tokenizer
    assert (found.kind, found.vocab) == ("bytes", 128)


def test_a_tokenizer_of_another_size_or_damaged_is_refused(
        model: QuantizedModel, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the tokenizer has 299 tokens, and the model 300"):
        replace(model, tokenizer=BytePairTokenizer(TOKENIZER.merges[:-1]))
    with pytest.raises(ValueError, match="the tokenizer has 256 tokens, and the model 300"):
        replace(model, tokenizer=BYTES)
    data = bytearray(model.to_bytes())
    data[data.index(TOKENIZER.merges.tobytes())] ^= 1
    (tmp_path / "m.safetensors").write_bytes(data)
    with pytest.raises(QuantizedFileError, match="the checksum does not match"):
        load_model(tmp_path / "m.safetensors")


def test_bits_are_divided_by_the_bytes_that_tokens_spell(model: QuantizedModel) -> None:
    text = TEXT[:300]
    found = evaluate(model, text, sequences=1)
    tokens = TOKENIZER.encode(text)
    logits, _ = IntegerModel(model).run(tokens[None, :-1])
    bits = surprisal_bits(logits[0], tokens[1:], model.profile.logit.frac).sum()
    judged = sum(len(TOKENIZER.spellings[token]) for token in tokens[1:])
    assert judged == len(text) - len(TOKENIZER.spellings[tokens[0]])
    assert found.bits_per_byte == pytest.approx(bits / judged, rel=1e-12)
    assert found.predictions == len(tokens) - 1


@pytest.mark.parametrize("window", [None, 50])
def test_the_float_model_is_measured_the_same_way(window: int | None) -> None:
    """A window begins at the token that the one before predicted last; what is left is not read."""
    model = LanguageModel(SHAPE)
    tokens = torch.from_numpy(TOKENIZER.encode(TEXT))
    size = window or len(tokens) - 1
    nats, judged = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(tokens) - size, size):
            row = tokens[start:start + size + 1]
            logits, _ = model(row[None, :-1])
            nats += float(F.cross_entropy(logits[0], row[1:], reduction="sum"))
            judged += sum(len(TOKENIZER.spellings[int(token)]) for token in row[1:])
    found = heldout_bpb(model, TEXT, sequences=3 if window else 1, chunk_tokens=37, window=window,
                        tokenizer=TOKENIZER)
    assert found == pytest.approx(nats / math.log(2) / judged, rel=1e-5)


def test_a_session_of_the_file_alone_reads_and_writes_text(
    model: QuantizedModel, tmp_path: Path,
) -> None:
    session = Session(export_onnx(model, tmp_path / "m.onnx"))
    assert session.info.tokenizer.sha256 == TOKENIZER.sha256
    prompt = "the form größer"
    pieces = list(session.generate([prompt, ""], tokens=30, temperature=1.0, seed=3))
    for index in (0, 1):
        drawn = [piece.token for piece in pieces if piece.prompt == index]
        text = "".join(piece.text for piece in pieces if piece.prompt == index)
        assert text == TOKENIZER.decode(drawn)
        assert max(drawn) >= 256
    (expected,) = answer(IntegerModel(model), [Request(
        tuple(TOKENIZER.encode(prompt).tolist()), 30, 1.0, 3)], model.profile.logit.frac)
    assert expected.generated == [piece.token for piece in pieces if piece.prompt == 0]


def test_a_stop_string_is_found_across_tokens(model: QuantizedModel) -> None:
    session = Session(build(model))
    [text] = session.complete("the", tokens=40, temperature=1.0)
    stop = text[7:12]
    assert session.complete("the", tokens=40, temperature=1.0, stop=stop) == [
        text[:text.index(stop)]]


def test_a_graph_of_bytes_names_no_tokenizer() -> None:
    proto = build(random_model(replace(SHAPE, vocab=256), C12))
    assert "sterna.tokenizer" not in [entry.key for entry in proto.metadata_props]


@pytest.mark.parametrize("vocab", [300, 1024])
def test_native_operators_compute_a_vocabulary_above_bytes(native_ops: Path, vocab: int) -> None:
    model = random_model(replace(SHAPE, vocab=vocab), C12, 5)
    tokens = np.random.default_rng(1).integers(0, vocab, (2, 12))
    tokens[:, -1] = vocab - 1
    logits, state = IntegerModel(model).run(tokens)
    for one_token in (False, True):
        graph = OnnxModel(build(model, one_token=one_token), ops=native_ops)
        found = graph.run(tokens, graph.start(2))
        np.testing.assert_array_equal(found[0], logits)
        np.testing.assert_array_equal(found[1], state)


@pytest.mark.slow
def test_a_run_with_a_tokenizer_becomes_a_model_that_writes_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    tokens, run, file = tmp_path / "t.json", tmp_path / "run", tmp_path / "m.safetensors"
    text = tmp_path / "text.txt"
    text.write_bytes(bundled_heldout()[:20_000])

    def sterna(*arguments: object) -> str:
        assert main([*map(str, arguments), "--quiet"]) == 0
        return capsys.readouterr().out

    assert "300 tokens" in sterna("tokenizer", "train", text, "--vocab", 300, "-o", tokens)
    sterna("train", *settings(d=8, layers=1, dff=12, batch=2, window=16), "--text", text,
           "--tokenizer", tokens, "--steps", 3, "--threads", 1, "-o", run)
    sterna("quantize", run, "-o", file, "--text", text)
    model = load_model(file)
    assert model.config.vocab == model.tokenizer.vocab == 300
    assert model.tokenizer.sha256 == load_tokenizer(tokens).sha256
    figures = [json.loads(sterna("evaluate", each, "--text", text, "--bytes", 2000, "--json"))
               for each in (run, file)]
    assert figures[0]["predictions"] == figures[1]["predictions"] < 1999
    assert figures[0]["bits_per_byte"] == pytest.approx(figures[1]["bits_per_byte"], abs=0.01)
    for each in (run / "checkpoint.pt", file):
        found = json.loads(sterna("generate", each, "--prompt", "the", "--tokens", 9, "--json"))
        assert found["text"] == model.tokenizer.decode(found["tokens"])
    assert main(["info", str(file)]) == 0
    assert f"tokenizer: bpe, sha256 {model.tokenizer.sha256}" in capsys.readouterr().out
    assert main(["train", "--tokenizer", str(tokens), "--data", "x", "--steps", "1"]) == 2
    assert "what sterna data build wrote has its own" in capsys.readouterr().err
