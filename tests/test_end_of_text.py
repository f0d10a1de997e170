"""The token that ends a document: made, written between documents, trained with, stopped at."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import refusal, run, settings
from shard_parts import stored_tokens

from sterna.export.forms.forms import build
from sterna.export.runtime.session import Session
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16, NumericProfile
from sterna.model.quantized import load_model
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.quantized.synthetic import random_model
from sterna.model.shards.build import BuildOptions
from sterna.model.shards.build import build as build_folder
from sterna.model.shards.files import verify
from sterna.model.shards.split import Split
from sterna.model.tokens.bpe import BytePairTokenizer
from sterna.model.tokens.bpe_training import END_OF_TEXT, package_tokenizer, train_bpe
from sterna.model.tokens.files import load_tokenizer, save_tokenizer, tokenizer_from_json
from sterna.model.torch.native_cpu.kernels import cpu_kernels
from sterna.model.torch.network.kernels import use_kernels
from sterna.model.torch.stack.language_model import LanguageModel

MERGES = [(116, 104), (256, 101), (257, 32), (97, 114)]
PAIRS = BytePairTokenizer(MERGES, end_of_text=True)
END = 260
SHAPE = ModelConfig(d=8, layers=2, dff=12, vocab=PAIRS.vocab)
MODEL = replace(random_model(SHAPE, C12), tokenizer=PAIRS)


def test_it_is_the_last_token_and_spells_nothing(tmp_path: Path) -> None:
    assert (PAIRS.vocab, PAIRS.end_of_text, PAIRS.spellings[END]) == (261, END, b"")
    assert PAIRS.decode([116, END, 97]) == "ta"
    again = load_tokenizer(save_tokenizer(PAIRS, tmp_path / "pairs.json"))
    assert again.end_of_text == END
    assert again.sha256 == PAIRS.sha256 != BytePairTokenizer(MERGES).sha256
    assert load_model(MODEL.save(tmp_path / "m.safetensors")).tokenizer.end_of_text == END
    with pytest.raises(ValueError, match="end_of_text must be true or left out, got 5"):
        tokenizer_from_json({**PAIRS.to_json(), "end_of_text": 5})


def test_a_text_has_the_same_tokens_with_and_without_it() -> None:
    text = bundled_heldout()[:6000].decode() + END_OF_TEXT
    ours = train_bpe([text.encode()], 301, end_of_text=True)
    assert (ours.vocab, ours.end_of_text) == (301, 300)
    tokens = ours.encode(text).tolist()
    assert tokens == train_bpe([text.encode()], 300).encode(text).tolist()
    package = package_tokenizer(ours)
    assert package.encode(text).ids == tokens
    assert package.token_to_id(END_OF_TEXT) == 300


def test_it_stands_between_documents_in_place_of_a_separator(tmp_path: Path) -> None:
    texts = [f"the part {number}" for number in range(40)]
    (tmp_path / "in.jsonl").write_text("".join(
        json.dumps({"text": text}) + "\n" for text in texts))
    index = build_folder([str(tmp_path / "in.jsonl")], tmp_path / "out",
                         BuildOptions(PAIRS, Split(0.3), block_bytes=9, jobs=2))
    stored = stored_tokens(tmp_path / "out", "<u2")
    documents = np.split(stored, np.flatnonzero(stored == END))
    read = [PAIRS.decode(each[each != END]) for each in documents]
    heldout = (tmp_path / "out" / "heldout.txt").read_text().split("\n\n")
    assert len(read) == index.train.documents > 9
    assert len(heldout) == index.heldout.documents > 3
    assert sorted(read + heldout) == sorted(texts)
    assert index.train.bytes == sum(map(len, read))
    assert verify(tmp_path / "out") == []


@pytest.mark.parametrize("profile", [S16, C12], ids=["S16", "C12"])
@pytest.mark.parametrize("native", [True, False], ids=["native", "torch"])
def test_after_it_a_text_is_read_as_if_nothing_came_before(
    profile: NumericProfile, native: bool,
) -> None:
    kernels = cpu_kernels() if native else None
    if native and kernels is None:
        pytest.skip("no C++ compiler here")
    with use_kernels(kernels):
        check_borders(profile)


def check_borders(profile: NumericProfile) -> None:
    model = LanguageModel(SHAPE, seed=3, profile=profile)
    model.reset_at(END)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 256, (3, 20), generator=generator)
    borders = [4, 11, 19]       # of each row; the others have none there
    for row, border in enumerate(borders):
        tokens[row, border] = END
    together, _ = model(tokens)
    for row, border in enumerate(borders):
        alone, _ = model(tokens[row:row + 1, border:])
        torch.testing.assert_close(together[row, border:], alone[0], rtol=0, atol=1e-5)
        before, state = model(tokens[row:row + 1, :border])
        torch.testing.assert_close(together[row, :border], before[0], rtol=0, atol=1e-5)
        stepped, _ = model.step(tokens[row:row + 1, border], state)
        torch.testing.assert_close(stepped[0], alone[0, 0], rtol=0, atol=1e-5)
    gradient, = torch.autograd.grad(
        model(tokens[1:2])[0][0, 11:].square().sum(), [model.embedding.weight])
    seen = gradient.abs().sum(-1).nonzero().flatten()
    assert set(seen.tolist()) == set(tokens[1, 11:].tolist())


def test_only_mlgru_can_start_anew() -> None:
    for change, message in (({"mixer": "mlgru + attention"}, "got attention and plain"),
                            ({"residual": "reversible"}, "got mlgru and reversible")):
        with pytest.raises(ValueError, match=message):
            LanguageModel(replace(SHAPE, **change)).reset_at(END)


def test_a_text_ends_with_it() -> None:
    head = MODEL.projections["head"]
    bias = head.bias.copy()
    bias[END] = MODEL.profile.logit.max // 2
    often = replace(MODEL, projections={**MODEL.projections, "head": replace(head, bias=bias)})
    session = Session(build(often))
    pieces = list(session.generate(["the", "a"], tokens=200, temperature=9.0))
    for prompt in (0, 1):
        own = [piece for piece in pieces if piece.prompt == prompt]
        assert [piece.end for piece in own] == [None] * (len(own) - 1) + ["stop"]
        assert [piece.token == END for piece in own] == [False] * (len(own) - 1) + [True]
        assert "".join(piece.text for piece in own) == PAIRS.decode(
            [piece.token for piece in own])
    assert 2 < len(pieces) < 400


def test_the_commands_go_from_documents_to_a_text_that_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    lines = "".join(json.dumps({"text": f"the {n % 7} parts. "}) + "\n" for n in range(400))
    (tmp_path / "in.jsonl").write_text(lines)
    (tmp_path / "in.txt").write_text(lines)
    for command in (
            ("tokenizer", "train", tmp_path / "in.txt", "--vocab", 270, "--end-of-text",
             "-o", tmp_path / "t.json"),
            ("data", "build", tmp_path / "in.jsonl", "--tokenizer", tmp_path / "t.json",
             "--heldout", 0.4, "-o", tmp_path / "data")):
        assert run(capsys, *command)[0] == 0
    code, out, _ = run(capsys, "data", "info", tmp_path / "data")
    assert code == 0
    assert "token 269; '\\n\\n' in the held-out text" in out
    train = ("train", "--config", "nano", "--data", tmp_path / "data", "--steps", 150, *settings(
        layers=1, window=16, heldout_steps=100, checkpoint_seconds=1000))
    resets = settings(reset_at_documents="true")
    code, _, _ = run(capsys, *train, *resets, "-o", tmp_path / "run")
    assert code == 0
    with (tmp_path / "run" / "metrics.csv").open() as file:
        measured = [row["step"] for row in csv.DictReader(file) if row["heldout_bpb"]]
    assert measured == ["100", "150"]
    _, out, _ = run(capsys, "generate", tmp_path / "run", "--prompt", "the ", "--tokens", 100,
                    "--temperature", 0, "--json")
    drawn = json.loads(out)["tokens"]
    assert drawn[-1] == 269
    assert len(drawn) < 100
    assert json.loads(out)["text"].endswith(" parts. ")
    assert "got attention and plain" in refusal(
        capsys, *train, *resets, "--mixer", "attention", "--quiet", "-o", tmp_path / "no")
    assert "sterna tokenizer train --end-of-text makes one" in refusal(
        capsys, "train", "--config", "nano", "--steps", 1, *resets, "--quiet",
        "-o", tmp_path / "no")
