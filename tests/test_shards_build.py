"""Building data folders: documents of any kind and size, against doing it in memory."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_parts import PairTokenizer, stored_tokens
from training_parts import contents

from sterna.model.shards.build import BuildOptions, build, encode_batches
from sterna.model.shards.files import Index, verify
from sterna.model.shards.split import Piece, Split
from sterna.model.shards.text import ShardText
from sterna.model.tokens.tokenizer import BYTES, ByteTokenizer

ALL = Split(0.0)
TEXTS = st.text(st.sampled_from("ab \né中🐦"), max_size=30)
TOKENIZERS: dict[str, Any] = {
    "<u1": ByteTokenizer(), "<u2": PairTokenizer(128), "<u4": PairTokenizer(256)}


def built(source: str | Path, out: Path, *, overwrite: bool = False, **options: Any) -> Index:
    return build([str(source)], out, BuildOptions(**{"split": ALL, **options}), overwrite=overwrite)


def texts_of(folder: Path) -> tuple[str, str]:
    """What is trained on, in bytes as tokens, and what is held out."""
    return (bytes(stored_tokens(folder, "<u1")).decode(), (folder / "heldout.txt").read_text())


def write_lines(path: Path, texts: list[str], field: str = "text") -> str:
    path.write_text("".join(json.dumps({"n": 1, field: text}) + "\n" for text in texts))
    return str(path)


def write_texts(folder: Path, texts: list[str]) -> str:
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"{number:03}.txt").write_text(text, newline="")
    return str(folder)


@settings(max_examples=25)
@given(st.lists(TEXTS, min_size=1, max_size=6), st.sampled_from(list(TOKENIZERS)),
       st.integers(9, 60) | st.just(1), st.integers(1, 40), st.booleans())
def test_tokens_are_those_of_each_document_in_memory(
    texts: list[str], dtype: str, shard_tokens: int, block_bytes: int, lines: bool,
) -> None:
    tokenizer = TOKENIZERS[dtype]
    separator = tokenizer.encode("\n\n")
    expected: list[int] = []
    for text in filter(None, texts):
        expected += [*(separator if expected else ()), *tokenizer.encode(text)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = (write_lines if lines else write_texts)(folder / "in.jsonl", texts)
        options = BuildOptions(
            tokenizer, ALL, shard_tokens=shard_tokens, block_bytes=block_bytes)
        if not expected:
            with pytest.raises(ValueError, match="nothing to train on: the inputs hold no text"):
                build([source], folder / "out", options)
            return
        index = build([source], folder / "out", options)
        assert stored_tokens(folder / "out", dtype).tolist() == expected
        assert {shard.tokens for shard in index.shards[:-1]} <= {shard_tokens}
        assert index.tokens == len(expected)
        # What is trained on is a known number of bytes, whatever the tokens.
        spelt = b"".join(tokenizer.spellings[token] for token in expected)
        assert index.train.bytes == len(spelt)
        assert spelt == "\n\n".join(filter(None, texts)).encode()


@settings(max_examples=25)
@given(st.lists(st.text("abc ", min_size=1, max_size=3), min_size=4, max_size=60),
       st.sampled_from([0.2, 0.5]), st.integers(0, 3))
def test_a_short_document_is_on_one_side_and_so_are_its_copies(
    texts: list[str], fraction: float, seed: int,
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = write_lines(folder / "in.jsonl", texts)
        try:
            index = built(source, folder / "out", split=Split(fraction, seed), separator="|")
        except ValueError:      # all of them on one side, which another test is about
            return
        train, heldout = (text.split("|") for text in texts_of(folder / "out"))
        assert not set(train) & set(heldout)
        assert [text for text in texts if text in train] == train
        assert [text for text in texts if text in heldout] == heldout
        assert (index.train.documents, index.heldout.documents) == (len(train), len(heldout))
        assert verify(folder / "out") == []
        assert index.sources == ({"name": "in.jsonl", "files": 1, "documents": len(texts),
                                  "bytes": sum(map(len, texts))},)
        assert index.train.bytes == len("|".join(train))
        assert index.heldout.bytes == len("|".join(heldout))


def test_about_the_fraction_is_held_out_and_another_seed_chooses_others(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [f"document {n}" for n in range(4000)])
    chosen = []
    for seed in (0, 1):
        index = built(source, tmp_path / str(seed), split=Split(0.1, seed))
        assert 340 < index.heldout.documents < 460      # three standard deviations
        chosen.append(set(texts_of(tmp_path / str(seed))[1].split("\n\n")))
    assert len(chosen[0] & chosen[1]) < 100


@pytest.mark.parametrize("text", ["é" * 3000, "line one\n" * 700, "x" * 5000], ids=len)
def test_the_end_of_a_single_text_is_held_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "one").write_text(text)
    built(tmp_path / "one", tmp_path / "out", split=Split(0.1), block_bytes=7)
    train, heldout = texts_of(tmp_path / "out")
    assert train + heldout == text
    assert 0.05 < len(heldout) / len(text) < 0.101
    assert "\n" not in text or train.endswith("\n")


def test_the_ends_of_long_texts_among_others_are_held_out(tmp_path: Path) -> None:
    texts = ["short", "a\n" * 40_000, "b\n" * 90_000]
    source = write_texts(tmp_path / "in", texts)
    built(source, tmp_path / "out", split=Split(), separator="|")
    assert texts_of(tmp_path / "out")[1] == "a\n" * 400 + "|" + "b\n" * 900


def test_a_text_of_ones_own_is_held_out(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", ["one", "two"])
    (tmp_path / "judge.txt").write_text("Straße\n")
    judge = tmp_path / "judge.txt"
    index = built(source, tmp_path / "out", heldout_file=judge)
    assert texts_of(tmp_path / "out") == ("one\n\ntwo", "Straße\n")
    assert index.split == {"file": "judge.txt"}
    for content, message in ((b"", "judge.txt: the text to hold out is empty"),
                             (b"ok \xff", "judge.txt: not UTF-8 text .byte 0xff at offset 3"),
                             (None, "cannot read the text to hold out")):
        judge.unlink() if content is None else judge.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            built(source, tmp_path / "no", heldout_file=judge)
    assert not (tmp_path / "no").exists()


def test_files_are_the_same_whatever_the_blocks_and_processes(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    texts = ["".join(rng.choice(list("ab \né"), n)) for n in rng.integers(1, 900, 40)]
    source = write_lines(tmp_path / "in.jsonl", texts)

    first, *others = (
        contents(tmp_path / name) for name, changes in (
            ("a", {}), ("b", {"block_bytes": 100}), ("c", {"block_bytes": 1000, "jobs": 2}))
        if built(source, tmp_path / name, tokenizer=PairTokenizer(128), split=Split(0.2),
                 shard_tokens=1000, **changes))
    assert others == [first, first]
    assert len(first) > 6


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    """Windows tools write one, before a text and before lines of JSON."""
    plain, judge = tmp_path / "in.txt", tmp_path / "judge.txt"
    for path in (plain, judge):
        path.write_text("\ufeffno mark", encoding="utf-8")
    packed, lines = tmp_path / "in.txt.gz", tmp_path / "in.jsonl"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    lines.write_text('\ufeff{"text": "no mark"}\n', encoding="utf-8")
    for source in (plain, packed, lines):
        built(str(source), tmp_path / "out", heldout_file=judge, overwrite=True)
        assert texts_of(tmp_path / "out") == ("no mark", "no mark")


def test_a_fault_in_another_process_is_told(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", ["fine", "größer"])
    with pytest.raises(ValueError, match=r"in.jsonl, line 2: .*byte 195 at offset 2"):
        built(source, tmp_path / "out", tokenizer=ByteTokenizer(128), jobs=2)
    assert not (tmp_path / "out").exists()


def test_ctrl_c_is_heard_while_the_first_texts_are_waited_for() -> None:
    before, handlers = signal.getsignal(signal.SIGINT), list[object]()

    def waiting() -> Iterator[list[Piece]]:
        handlers.append(signal.getsignal(signal.SIGINT))
        yield from ()

    assert list(encode_batches(BYTES, waiting(), 2)) == []
    assert handlers == [before] != [signal.SIG_IGN]


# Kinds of sources ---------------------------------------------------------------------


def test_a_text_that_has_to_be_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a pipe, of standard input, and packed."""
    text = "Ein Text, groß genug.\n" * 300
    pipe, packed, out = tmp_path / "pipe", tmp_path / "in.txt.gz", tmp_path / "out"
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=(text.encode(),), daemon=True).start()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    packed.write_bytes(gzip.compress(text.encode()))
    for source in (pipe, "-", packed):
        built(source, out, split=Split(), overwrite=True)
        assert sorted(contents(out)) == ["heldout.txt", "index.json", "train-00000.bin"]
        assert "".join(texts_of(out)) == text


def test_a_folder_is_read_in_order_of_paths_and_hidden_files_are_not(tmp_path: Path) -> None:
    """Nor is a null or an empty text a document."""
    folder = tmp_path / "in"
    (folder / "b" / ".git").mkdir(parents=True)
    (folder / ".hidden.txt").write_text("no")
    (folder / "b" / ".git" / "x.txt").write_text("no")
    (folder / "picture.png").write_text("no")
    (folder / "a.txt").write_text("A")
    (folder / "c.md").write_text("C")
    (folder / "b" / "lines.jsonl.gz").write_bytes(gzip.compress(
        b'{"text": null}\n{"text": "B"}\n\n{"text": ""}\n'))
    index = built(folder, tmp_path / "out", separator=",")
    assert texts_of(tmp_path / "out") == ("A,B,C", "")
    assert index.sources == ({"name": "in", "files": 3, "documents": 3, "bytes": 3},)
    (folder / "b" / "lines.jsonl.gz").unlink()
    built(folder, tmp_path / "all", kind="text", separator=",")
    assert texts_of(tmp_path / "all") == ("A,C,no", "")


@pytest.mark.parametrize(("line", "message"), [
    (b'{"text": "a"', r"in.jsonl, line 2: not JSON"),
    (b'{"body": "a"}', r"in.jsonl, line 2: there is no field 'text', but body"),
    (b'{"text": 5}', r"in.jsonl, line 2: field 'text' must be a text, got 5"),
    (b'["text"]', r"in.jsonl, line 2: expected an object, got list"),
    (b'{"text": "\xff"}', r"in.jsonl, line 2: not UTF-8 text \(byte 0xff\)"),
    (b'{"text": "ab\\ud800"}', r"in.jsonl, line 2: .* surrogate pair at character 2"),
    (b"[" * 100_000, r"in.jsonl, line 2: not JSON"),
])
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    (tmp_path / "in.jsonl").write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    with pytest.raises(ValueError, match=message):
        built(tmp_path / "in.jsonl", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize("offset", [0, 6, 7, 8, 20])
def test_a_byte_that_is_no_text_is_named_wherever_blocks_end(tmp_path: Path, offset: int) -> None:
    data = bytearray("äöü€ and so on, again".encode())
    data[offset] = 0xFE
    (tmp_path / "in.txt").write_bytes(data)
    with pytest.raises(UnicodeDecodeError) as truth:
        data.decode()
    for block_bytes in (1, 3, 100):
        with pytest.raises(ValueError, match=rf"in.txt: not UTF-8 text \(byte 0x[0-9a-f]+ at "
                                             rf"offset {truth.value.start}\)"):
            built(tmp_path / "in.txt", tmp_path / "out", block_bytes=block_bytes)


def test_inputs_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"text" * 999)[:-9])
    (tmp_path / "no.txt.gz").write_bytes(b"text")
    for inputs, message in (
            ([tmp_path / "gone"], "gone: cannot read the input .No such file"),
            ([tmp_path / "empty"], "empty: there is no file in the folder whose name ends in"),
            ([tmp_path / "cut.txt.gz"], "cut.txt.gz: not a whole gzip file"),
            ([tmp_path / "no.txt.gz"], "no.txt.gz: not a whole gzip file"),
            (["a", "b", "a"], "an input is given twice: a"),
            ([], "at least one input")):
        with pytest.raises(ValueError, match=message):
            build(list(map(str, inputs)), tmp_path / "out", BuildOptions())
    assert not (tmp_path / "out").exists()


# The folder that is written -----------------------------------------------------------


def test_only_a_whole_data_folder_is_replaced_and_only_if_asked(tmp_path: Path) -> None:
    source, out = write_lines(tmp_path / "in.jsonl", ["one"]), tmp_path / "out"
    built(source, out)
    with pytest.raises(ValueError, match="out already exists: --overwrite replaces it"):
        built(source, out)
    source = write_lines(tmp_path / "in.jsonl", ["two"])
    built(source, out, overwrite=True)
    assert bytes(ShardText(out).piece(0, 3).tolist()) == b"two"
    (out / "notes").write_text("mine")
    with pytest.raises(ValueError, match="out also holds notes, which Sterna did not write"):
        built(source, out, overwrite=True)
    (out / "notes").rename(out / "index.json")
    for place, message in ((out, "out is no whole data folder"), (source, r"in.jsonl is a file")):
        with pytest.raises(ValueError, match=message):
            built(source, place, overwrite=True)
    with pytest.raises(ValueError, match=r"out is within the input .*, and would be read"):
        built(tmp_path, tmp_path / "sub" / "out")
    assert not (tmp_path / "sub").exists()
    (tmp_path / "a").write_text("a")
    with pytest.raises(ValueError, match="nothing of 1 document came to be held out with"):
        built(tmp_path / "a", tmp_path / "no", split=Split(0.5))
    with pytest.raises(OSError, match="cannot write") as error:
        built(source, Path("/proc/out"))
    assert error.value.filename == "/proc/out"


def test_a_build_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    source, out = write_lines(tmp_path / "in.jsonl", ["one"]), tmp_path / "out"
    built(source, out)
    before = contents(out)

    def stop(*state: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build([source], out, BuildOptions(split=ALL), overwrite=True, progress=stop)
    assert contents(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out"]


@pytest.mark.parametrize(("kind", "wrong"), [
    *((BuildOptions, {name: value}) for name, value in (
        ("shard_tokens", 0), ("jobs", 0), ("jobs", 257), ("kind", "csv"), ("separator", "\udcff"),
        ("block_bytes", 0))),
    *((Split, {name: value}) for name, value in (
        ("fraction", 0.6), ("fraction", -0.1), ("fraction", float("nan")), ("seed", -1),
        ("long_bytes", 0)))])
def test_numbers_out_of_range_are_refused(kind: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        kind(**wrong)


# Tables -------------------------------------------------------------------------------


def test_parquet_is_read_by_row_groups(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet
    texts = ["one", None, "zwölf", "", "three"]
    path = tmp_path / "in.parquet"
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        table = pa.table({"n": list(range(5)), "body": pa.array(texts, pa.string()).cast(kind)})
        parquet.write_table(table, path, row_group_size=2)
        index = built(path, tmp_path / "out", column="body", separator="|", overwrite=True)
        assert texts_of(tmp_path / "out") == ("one|zwölf|three", "")
        assert index.sources == (
            {"name": "in.parquet", "files": 1, "documents": 3, "bytes": 14},)
    for column, message in (
            ("text", "in.parquet: there is no column 'text', but n, body; --column"),
            ("n", "in.parquet: column 'n' must hold texts, it holds int64")):
        with pytest.raises(ValueError, match=message):
            built(path, tmp_path / "no", column=column)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"in.parquet: cannot read the Parquet file"):
        built(path, tmp_path / "no", column="body")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_saved_data_set_of_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["eins", None, "zwei"], "n": [1, 2, 3]})
    for name in ("plain", "a:b"):
        rows.save_to_disk(tmp_path / name)
    datasets.DatasetDict({"train": rows, "dev": rows.select([0])}).save_to_disk(tmp_path / "both")
    for source, expected in ((f"{tmp_path}/plain", "eins|zwei"), (f"{tmp_path}/a:b", "eins|zwei"),
                             (f"hf:{tmp_path}/both", "eins|zwei"),
                             (f"hf:{tmp_path}/both:dev", "eins")):
        built(source, tmp_path / "out", separator="|", overwrite=True)
        assert texts_of(tmp_path / "out") == (expected, "")
    for source, column, message in (
            (f"hf:{tmp_path}/both:test", None, "no split 'test', but train, dev"),
            (f"hf:{tmp_path}/plain:dev", None, "saved without splits"),
            ("hf:a:b:c:d", None, "a data set is hf:NAME"),
            (f"{tmp_path}/plain", "body", "no column 'body', but text, n")):
        with pytest.raises(ValueError, match=message):
            built(source, tmp_path / "no", column=column)
