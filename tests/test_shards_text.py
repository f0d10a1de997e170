"""Data folders read: the same as in memory, and every damage said."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.model.corpus import Corpus
from sterna.model.shards import text as shards_text
from sterna.model.shards.build import BuildOptions, build
from sterna.model.shards.files import ShardError, verify
from sterna.model.shards.split import Split
from sterna.model.shards.text import ShardText
from sterna.model.tokens.bpe import BytePairTokenizer
from sterna.model.tokens.text import MemoryText
from sterna.model.tokens.tokenizer import BYTES, Tokenizer

WORDS = BytePairTokenizer([(116, 104), (256, 101), (32, 257), (195, 164)])
TOKENIZERS: list[Tokenizer] = [BYTES, WORDS]
TEXT = "the cat, then the Bär. Nothing\nelse: the\n\nend  of it " * 300


def built(folder: Path, tokenizer: Tokenizer = WORDS, shard_tokens: int = 997) -> Path:
    (folder / "in.txt").write_text(TEXT)
    build([str(folder / "in.txt")], folder / "data", BuildOptions(
        tokenizer, Split(0.1), shard_tokens=shard_tokens, block_bytes=1000))
    return folder / "data"


def halves(folder: Path) -> Corpus:
    """The text of a folder as a corpus in memory, divided at the same place."""
    heldout = (folder / "heldout.txt").read_bytes()
    assert TEXT.encode().endswith(heldout)
    return Corpus("data", TEXT.encode()[:-len(heldout)], heldout)


@pytest.fixture(scope="module", params=TOKENIZERS, ids=lambda tokenizer: tokenizer.kind)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[
        ShardText, MemoryText]:
    """A data folder of several shards, and the same in memory."""
    folder = built(tmp_path_factory.mktemp("data"), request.param)
    return ShardText(folder), MemoryText(halves(folder), request.param)


@given(st.data())
def test_a_piece_is_that_of_the_text_in_memory(
    both: tuple[ShardText, MemoryText], draw: st.DataObject,
) -> None:
    shards, memory = both
    assert len(shards) == len(memory) > 5 * 997
    start = draw.draw(st.integers(0, len(memory) - 1))
    count = draw.draw(st.integers(0, 3000) | st.just(len(memory)))
    piece = shards.piece(start, count)
    assert piece.dtype == np.int64
    assert np.array_equal(piece, memory.piece(start, count))


@given(st.none() | st.integers(0, 2000))
def test_the_heldout_text_is_that_in_memory(
    both: tuple[ShardText, MemoryText], most: int | None,
) -> None:
    assert both[0].heldout(most) == both[1].heldout(most)


def test_a_folder_says_what_it_is(both: tuple[ShardText, MemoryText]) -> None:
    shards, memory = both
    assert shards.name == "data"
    assert shards.tokenizer.to_json() == memory.tokenizer.to_json()
    assert shards.index.train.bytes == len(TEXT.encode()) - len(memory.heldout())


def test_the_hash_is_of_the_content_and_not_of_the_shards(tmp_path: Path) -> None:
    hashes = []
    for number, (tokenizer, shard_tokens) in enumerate([(WORDS, 500), (WORDS, 600), (BYTES, 500)]):
        (tmp_path / str(number)).mkdir()
        hashes.append(ShardText(built(tmp_path / str(number), tokenizer, shard_tokens)).sha256)
    assert hashes[0] == hashes[1] != hashes[2]


def test_few_shards_are_open_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shards_text, "_MOST_OPEN", 2)
    folder = built(tmp_path, BYTES, 100)
    tokens = ShardText(folder)
    assert bytes(tokens.piece(0, len(tokens)).tolist()) == halves(folder).train
    assert tokens._shard.cache_info().currsize == 2


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux tells what is resident")
def test_what_was_read_does_not_stay_resident(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text(TEXT * 200)
    build([str(tmp_path / "in.txt")], tmp_path / "data",
          BuildOptions(BYTES, Split(0.1), shard_tokens=1 << 18))
    tokens = ShardText(tmp_path / "data")
    for start in range(0, 1024 * 2500, 2500):   # less than 256 of them in each shard
        tokens.piece(start % len(tokens), 129)
    maps = Path("/proc/self/smaps").read_text().split("\n")
    shards = [number for number, line in enumerate(maps) if str(tmp_path) in line]
    size, resident = (sum(next(int(line.split()[1]) for line in maps[at:] if line.startswith(name))
                          for at in shards) for name in ("Size:", "Rss:"))
    assert len(shards) > 6
    assert size > 2000       # kB
    assert resident < 512    # a few reads since pages were last given back


def test_a_folder_that_is_replaced_is_read_no_further(tmp_path: Path) -> None:
    folder = built(tmp_path, BYTES)
    text = ShardText(folder)
    first = text.piece(0, 100)
    folder.rename(tmp_path / "old")
    with pytest.raises(ShardError, match="data: was replaced or removed while it was read"):
        text.piece(997, 5)
    built(tmp_path, BYTES)
    assert np.array_equal(text.piece(0, 100), first)      # which is mapped
    with pytest.raises(ShardError, match="data: was replaced or removed while it was read"):
        text.piece(997, 5)


# Damage -------------------------------------------------------------------------------


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def set_index(folder: Path, **fields: object) -> None:
    path = folder / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def header(field: int, value: int) -> Callable[[Path], None]:
    """Set a field of the header of a shard."""
    def change(data: bytes) -> bytes:
        fields = list(struct.unpack_from("<8sIIQ", data))
        fields[field] = value
        return struct.pack("<8sIIQ", *fields) + data[24:]
    return lambda folder: rewrite(folder / "train-00002.bin", change)


def shards_of(folder: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((folder / "index.json").read_text())["shards"]
    return found


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, "data: no data folder, cannot read index.json .No such file"),
    "no index": (lambda f: (f / "index.json").unlink(), "no data folder, cannot read index.json"),
    "no JSON": (lambda f: (f / "index.json").write_text("{"), "index.json: not the index .* JSON"),
    "not text": (lambda f: (f / "index.json").write_bytes(b"\xff"), "index.json: not the index"),
    "nested": (lambda f: (f / "index.json").write_text("[" * 99999), "index.json: not the index"),
    "list": (lambda f: (f / "index.json").write_text("[]"), "index.json: not the index"),
    "other format": (lambda f: set_index(f, format="x"), "index.json: not the index"),
    "later version": (lambda f: set_index(f, version=2), "version 2, this Sterna reads version 1"),
    "field missing": (lambda f: rewrite(f / "index.json", lambda text: text.replace(
        b'"separator"', b'"between"')), "missing: separator; unknown: between"),
    "other tokenizer": (lambda f: set_index(f, tokenizer={}), "index.json: .*tokenizer"),
    "other vocabulary": (lambda f: set_index(f, vocab=7), "index.json: .*7"),
    "shards are no list": (lambda f: set_index(f, shards=5), "index.json: "),
    "no shards": (lambda f: set_index(f, shards=[]), "index.json: there is no shard"),
    "shard elsewhere": (lambda f: set_index(f, shards=[{**shards_of(f)[0], "file": "/etc/motd"}]),
                        "shard 0 must be train-00000.bin, got '/etc/motd'"),
    "tokens are text": (lambda f: set_index(f, shards=[{**shards_of(f)[0], "tokens": "7"}]),
                        "tokens must be a whole number from 1 to .*, got '7'"),
    "endless tokens": (lambda f: set_index(f, shards=[
        *shards_of(f)[:-1], {**shards_of(f)[-1], "tokens": 10 ** 30}]), "tokens must be a whole"),
    "tokenizer of another size": (lambda f: set_index(f, tokenizer="bytes", vocab=10 ** 30),
                                  "vocab must be that of its tokenizer, 256, got 1,000"),
    "split is text": (lambda f: set_index(f, split="fraction, seed"), "split must have a file"),
    "split says nothing": (lambda f: set_index(f, split={}), "split must have a file, or a"),
    "fraction is text": (lambda f: set_index(f, split={"fraction": "x", "seed": 0}), "fraction mu"),
    "separator": (lambda f: set_index(f, separator=["x"]), "separator must be text, got"),
    "sources are no list": (lambda f: set_index(f, sources="abc"), "sources must be a list"),
    "a source is text": (lambda f: set_index(f, sources=["abc"]), "expected an object with files"),
    "a source is cut": (lambda f: set_index(f, sources=[{"name": "a", "files": 1}]), "documents m"),
    "documents": (lambda f: set_index(f, heldout={"bytes": 1, "documents": "x", "sha256": ""}),
                  "documents must be a whole number"),
    "size of the text": (lambda f: set_index(f, train={"bytes": -1}), "bytes must be a whole"),
    "hash changed": (lambda f: set_index(f, sha256="0"), "the file was changed"),
    "shard missing": (lambda f: (f / "train-00002.bin").unlink(), "00002.bin: cannot read the sh"),
    "shard truncated": (lambda f: rewrite(f / "train-00002.bin", lambda data: data[:-1]),
                        r"00002.bin: must have 2,026 bytes, got 2,025"),
    "shard too long": (lambda f: rewrite(f / "train-00002.bin", lambda data: data + b"1"),
                       r"00002.bin: must have 2,026 bytes, got 2,027"),
    "shard empty": (lambda f: rewrite(f / "train-00002.bin", lambda data: b""), "not a shard"),
    "header cut": (lambda f: rewrite(f / "train-00002.bin", lambda data: data[:20]), "a short hea"),
    "magic": (lambda f: rewrite(f / "train-00002.bin", lambda data: b"S" + data[1:]),
              "00002.bin: not a shard of tokens"),
    "shard of a later version": (header(1, 2), "should say version 1, .* got 2, 2, 997"),
    "other type": (header(2, 4), "bytes per token 2, .* got 1, 4, 997"),
    "other number": (header(3, 996), "tokens 997; got 1, 2, 996"),
    "no heldout": (lambda f: (f / "heldout.txt").unlink(), "heldout.txt: cannot read it"),
    "heldout cut": (lambda f: rewrite(f / "heldout.txt", lambda text: text[:-1]),
                    "heldout.txt: must have"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_said(whole: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(whole, tmp_path / "data")
    damage, message = DAMAGE[name]
    damage(folder)
    for read in (ShardText, verify):
        with pytest.raises(ShardError, match=message) as error:
            read(folder)
        assert "\n" not in str(error.value)


def test_what_keeps_its_size_is_found_by_its_hash(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "data")
    assert verify(folder) == []
    rewrite(folder / "train-00001.bin", lambda data: data[:-1] + bytes([data[-1] ^ 1]))
    rewrite(folder / "heldout.txt", lambda text: b"X" + text[1:])
    ShardText(folder)       # which does not read all
    assert verify(folder) == [
        f"{folder}/train-00001.bin: the tokens are not those that were built",
        f"{folder}/heldout.txt: the text is not the one that was built"]


def test_an_index_that_does_not_fit_its_shards_is_found(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "data")
    shards = shards_of(folder)
    assert shards[0]["tokens"] == shards[1]["tokens"]
    shards[0]["sha256"], shards[1]["sha256"] = shards[1]["sha256"], shards[0]["sha256"]
    set_index(folder, shards=shards)
    (folder / "train-00000.bin").rename(folder / "x")
    (folder / "train-00001.bin").rename(folder / "train-00000.bin")
    (folder / "x").rename(folder / "train-00001.bin")
    assert verify(folder) == [
        f"{folder}: the shards are not those of this index, or not in its order"]


@pytest.mark.parametrize(("part", "field", "message"), [
    ("train", "bytes", "train has {0} bytes, and the tokens spell"),
    ("train", "documents", "the sources have 1 documents, and what was made of them"),
    ("sources", "bytes", "the sources have {0} bytes of text, and what was made of them"),
    ("sources", "documents", "the sources have {0} documents, and what was made of them"),
])
def test_a_count_that_is_not_that_of_the_tokens_is_found(
    whole: Path, tmp_path: Path, part: str, field: str, message: str,
) -> None:
    folder = shutil.copytree(whole, tmp_path / "data")
    index = json.loads((folder / "index.json").read_text())
    entry = index["sources"][0] if part == "sources" else index[part]
    entry[field] += 5
    set_index(folder, **{part: index[part]})
    assert any(line.startswith(f"{folder}/index.json: " + message.format(f"{entry[field]:,}"))
               for line in verify(folder))
