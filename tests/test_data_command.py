"""``sterna data``: what it prints and writes, and how it ends."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from pathlib import Path

import pytest
from command_line import refusal, run
from test_interrupt import interrupted

from sterna.model.shards.text import ShardText
from sterna.model.tokens.bpe import BytePairTokenizer
from sterna.model.tokens.files import save_tokenizer

pytestmark = pytest.mark.usefixtures("no_seconds")
TEXT = "This is the text that the tokens are of.\n" * 300


def test_a_text_becomes_a_folder_that_can_be_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    (tmp_path / "in.txt").write_text(TEXT)
    tokenizer = save_tokenizer(BytePairTokenizer([(116, 104), (256, 101)]), tmp_path / "t.json")
    out = tmp_path / "data"
    code, printed, err = run(capsys, "data", "build", tmp_path / "in.txt", "-o", out,
                             "--tokenizer", tokenizer, "--shard-tokens", 2500, "--heldout", 0.1)
    assert code == 0
    assert printed == (f"{out}: {len(ShardText(out)):,} tokens in 4 shards, 11,070 bytes to train "
                       f"on, 1,230 held out\n")
    assert err.splitlines()[0] == f"build {out}"
    assert "MB/s" in err
    code, printed, _ = run(capsys, "data", "info", out, "--verify")
    assert code == 0
    for words in ("bpe, 258 tokens", "uint16 in 4 shards", "about 0.1 of the text, seed 0",
                  "from in.txt", ShardText(out).sha256, "as they were built"):
        assert words in printed
    code, printed, _ = run(capsys, "data", "info", out, "--json")
    facts = json.loads(printed)
    assert (code, facts["tokens"], facts["tokenizer"]) == (0, len(ShardText(out)), "bpe")
    assert facts["bytes_per_token"] == pytest.approx(11_070 / facts["tokens"])
    held = out / "heldout.txt"
    held.write_bytes(held.read_bytes()[::-1])
    code, printed, err = run(capsys, "data", "info", out, "--verify", "--json")
    message = f"{held}: the text is not the one that was built"
    assert (code, json.loads(printed)["wrong"]) == (1, [message])
    assert err.endswith(f"sterna: {message}\n")


def test_standard_input_and_options_of_a_build(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = '{"body": "one"}\n{"body": "two"}\n'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    (tmp_path / "held").write_text("judge")
    code, printed, err = run(
        capsys, "data", "build", "-", "-o", tmp_path / "d", "--format", "jsonl", "--column", "body",
        "--separator", r"\n--\n", "--heldout-file", tmp_path / "held", "--quiet", "--json")
    assert (code, err) == (0, "")
    assert json.loads(printed)["train"]["documents"] == 2
    text = ShardText(tmp_path / "d")
    assert bytes(text.piece(0, len(text)).tolist()) == b"one\n--\ntwo"
    _, printed, _ = run(capsys, "data", "info", tmp_path / "d", "--verify")
    for words in ("the file held", "2 documents, 1 file", "5 bytes, 1 document:"):
        assert words in printed


@pytest.mark.parametrize(("arguments", "message"), [
    (("build", "in.txt", "-o", "d", "--heldout", 0.1, "--heldout-file", "x"),
     "--heldout is for a part of the inputs: leave it out with --heldout-file"),
    (("build", "in.txt", "-o", "d", "--seed", 0, "--heldout-file", "x"), "--seed is for a part of"),
    (("build", "in.txt", "-o", "d", "--seed", 0, "--heldout", 0), "leave it out with --heldout 0"),
    (("build", "in.txt", "-o", "d", "--column", "text"), "--column is for JSON lines, Parquet and"),
    (("build", "in.txt", "-o", "d", "--jobs", 2), "--jobs is for --tokenizer FILE: bytes are"),
    (("build", "in.txt", "-o", "d", "--seed", 0), "--seed is for several documents, and"),
    (("build", ".", "-o", "../d", "--separator", "--"), "--separator is for several documents"),
    (("build", "hf:some/set", "-o", "d", "--format", "jsonl"), "--format says what files are, an"),
    (("build", ".", "-o", "../d", "--heldout-file", "./in.txt"),
     "in.txt is to be held out, and is also among the inputs"),
    (("build", "in.txt", "-o", "d", "--format", "csv"), "--format must be one of auto, text"),
    (("build", "in.txt", "-o", "d", "--tokenizer", "gone.json"), "gone.json: cannot read the tok"),
    (("build", "in.txt", "-o", "in.txt"), "--output must name a folder, and in.txt is a file"),
    (("build", "-o", "d"), "Missing argument"),
    (("info", "gone"), "gone: no data folder, cannot read index.json"),
])
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[object, ...], message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text(TEXT)
    assert message in refusal(capsys, "data", *arguments, "--quiet")
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_a_missing_package_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "in.parquet").write_bytes(b"PAR1")
    for package, source, extra in (("pyarrow", tmp_path / "in.parquet", "[data]"),
                                   ("datasets", "hf:some/set", "[datasets]")):
        monkeypatch.setitem(sys.modules, package, None)
        said = refusal(capsys, "data", "build", source, "-o", tmp_path / "d", "--quiet")
        assert f"this needs the Python package {package}: " in said
        assert extra in said


@pytest.mark.slow
def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    pipe, work = tmp_path / "pipe", tmp_path / "work"
    os.mkfifo(pipe)
    work.mkdir()
    ended = threading.Event()

    def feed() -> None:
        with pipe.open("wb") as file:
            file.write(TEXT.encode())
            file.flush()
            ended.wait(120)

    thread = threading.Thread(target=feed)
    thread.start()
    interrupted(tmp_path, ("data", "build", pipe, "-o", work / "d"),
                lambda out, err: bool(list(work.glob(".d.*/new/heldout.txt"))))
    ended.set()
    thread.join()
    assert list(work.iterdir()) == []
