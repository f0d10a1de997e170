"""Training from a data folder: the weights are those of the same text in memory."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import refusal, run, settings
from shard_parts import folder_of
from training_parts import assert_same_weights
from training_parts import run as run_model

from sterna.model.config import ModelConfig
from sterna.model.corpus import Corpus
from sterna.model.shards.build import BuildOptions, build
from sterna.model.shards.split import Split
from sterna.model.shards.text import ShardText
from sterna.model.tokens.bpe import BytePairTokenizer
from sterna.model.tokens.text import MemoryText
from sterna.model.tokens.tokenizer import BYTES, Tokenizer
from sterna.model.torch.training.checkpoint import load_checkpoint, save_checkpoint
from sterna.model.torch.training.recipe import TrainRecipe

pytestmark = pytest.mark.usefixtures("no_seconds")
TEXT = "Shards hold tokens; a window may cross from one to the next.\n" * 200
PAIRS = BytePairTokenizer([(116, 111), (32, 256), (115, 32), (110, 101)])


@pytest.mark.parametrize(("tokenizer", "carry"), [(BYTES, False), (PAIRS, True)])
def test_the_weights_are_those_of_the_text_in_memory(
    tmp_path: Path, tokenizer: Tokenizer, carry: bool,
) -> None:
    shards = ShardText(folder_of(tmp_path, TEXT, tokenizer, 1000))
    heldout = shards.heldout()
    memory = MemoryText(Corpus("data", TEXT.encode()[:-len(heldout)], heldout), tokenizer)
    ours, theirs = (run_model(
        tmp_path / name, 5, seed=3, corpus=text,
        config=ModelConfig(d=8, layers=1, dff=12, vocab=tokenizer.vocab), recipe=TrainRecipe(
            batch=4, window=300, warmup_steps=2, carry_state=carry, float_start=0.0),
    ) for name, text in (("a", shards), ("b", memory)))
    assert_same_weights(ours.model, theirs.model)
    assert ours.heldout_bpb == theirs.heldout_bpb


def test_the_command_trains_on_a_data_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    data = folder_of(tmp_path, TEXT, PAIRS, 1000)
    code, out, err = run(
        capsys, "train", "--config", "nano", *settings(layers=1, window=64), "--data", data,
        "--steps", 2, "-o", tmp_path / "run", "--json")
    assert code == 0
    assert f"data: {len(ShardText(data)):,} tokens of " in err
    assert json.loads(out)["tokens"] == 2 * 8 * 64
    heldout = ShardText(data).heldout()
    code, measured, _ = run(capsys, "evaluate", tmp_path / "run", "--json")
    assert (code, json.loads(measured)["bits_per_byte"]) == (0, json.loads(out)["heldout_bpb"])
    quantize = ("quantize", tmp_path / "run", "-o", tmp_path / "m.safetensors")
    code, out, _ = run(capsys, *quantize, "--json")
    assert (code, json.loads(out)["text_sha256"]) == (0, hashlib.sha256(heldout).hexdigest())
    folder_of(tmp_path / "other", TEXT, BYTES, 1000).rename(data.with_name("new"))
    data.rename(data.with_name("old"))
    assert "cannot be read: --text names a text" in refusal(capsys, "evaluate", tmp_path / "run")
    data.with_name("new").rename(data)
    assert "is another one now: --text " in refusal(capsys, "evaluate", tmp_path / "run")
    code, _, err = run(capsys, *quantize)
    assert code == 0
    assert "nothing is measured: the data folder of the run" in err
    for more, message in ((("--text", "a.txt"), "give the text as --text or as --data"),
                          (("--docstrings",), "leave it out with --data")):
        assert message in refusal(capsys, "train", "--data", data, "--steps", 1, *more)
    build([str(tmp_path / "in.txt")], tmp_path / "all", BuildOptions(split=Split(0.0)))
    code, _, err = run(
        capsys, "train", "--data", tmp_path / "all", "--steps", 1, "-o", tmp_path / "none")
    assert (code, err.splitlines()[-1]) == (
        2, "sterna: all holds out no text to judge by, which training needs")
    assert "gone: no data folder" in refusal(
        capsys, "train", "--data", tmp_path / "gone", "--steps", 1)
    data = data.with_name("old")
    for shard in data.glob("train-*.bin"):
        shard.write_bytes(shard.read_bytes()[:-100] + b"\xff" * 100)
    code, _, err = run(
        capsys, "train", "--data", data, "--steps", 9, "-o", tmp_path / "none", "--quiet")
    assert code == 2
    assert "bin: is damaged: it holds token 65535, and the tokenizer has 260" in err


def test_a_run_is_measured_on_its_own_text_or_says_on_which(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    text, other = tmp_path / "in.txt", tmp_path / "other.txt"
    text.write_text(TEXT + "é\n", encoding="utf-8")
    other.write_text(TEXT[::-1])
    code, out, _ = run(capsys, "train", "--config", "micro", "--steps", 1, "--text", text,
                       "-o", tmp_path / "run", "--no-report", "--json")
    assert code == 0
    evaluate, own = ("evaluate", tmp_path / "run"), "the held-out part of in.txt-ascii"
    code, measured, err = run(capsys, *evaluate, "--json")
    assert (code, json.loads(measured)["text"]) == (0, own)
    assert json.loads(measured)["bits_per_byte"] == pytest.approx(
        json.loads(out)["heldout_bpb"], rel=1e-6)
    assert "another text" not in err
    assert f"predictions of {other} (float)\n" in run(capsys, *evaluate, "--text", other)[1]
    model = tmp_path / "m.safetensors"
    code, out, _ = run(capsys, "quantize", tmp_path / "run", "-o", model, "--json")
    assert json.loads(out)["predictions"] == json.loads(measured)["predictions"]

    checkpoint = load_checkpoint(tmp_path / "run")      # as one of before, that names no file
    save_checkpoint(replace(checkpoint, text_file=None), tmp_path / "old.pt")
    for each, name in ((tmp_path / "old.pt", "float"), (model, "S16")):
        code, out, err = run(capsys, "evaluate", each, "--bytes", 300)
        assert out.endswith(f" predictions of the bundled held-out text ({name})\n")
        assert f"{each} was trained on another text, in.txt-ascii: --text names one" in err
    text.write_text(TEXT)
    assert "is another one now: --text names a text" in refusal(capsys, *evaluate)
    text.unlink()
    assert "cannot be read: --text names a text" in refusal(capsys, *evaluate)
