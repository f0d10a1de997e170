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
from shard_parts import folder_of

from sterna.model.corpus import Corpus
from sterna.model.shards import text as shards_text
from sterna.model.shards.files import ShardError, verify
from sterna.model.shards.text import ShardText
from sterna.model.tokens.bpe import BytePairTokenizer
from sterna.model.tokens.text import MemoryText
from sterna.model.tokens.tokenizer import BYTES, Tokenizer

WORDS = BytePairTokenizer([(116, 104), (256, 101), (32, 257), (195, 164)])
TOKENIZERS: list[Tokenizer] = [BYTES, WORDS]
TEXT = "the cat, then the Bär. Nothing\nelse: the\n\nend  of it " * 300


def built(folder: Path, tokenizer: Tokenizer = WORDS, shard_tokens: int = 997) -> Path:
    return folder_of(folder, TEXT, tokenizer, shard_tokens)


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


def test_a_folder_says_what_it_is(both: tuple[ShardText, MemoryText], tmp_path: Path) -> None:
    """The hash is of the content, and not of the shards."""
    shards, memory = both
    assert shards.name == "data"
    assert shards.tokenizer.to_json() == memory.tokenizer.to_json()
    assert shards.index.train.bytes == len(TEXT.encode()) - len(memory.heldout())
    same = ShardText(built(tmp_path, WORDS, 600)).sha256 == shards.sha256
    assert same == (shards.tokenizer.kind == "bpe")


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
    tokens = ShardText(folder_of(tmp_path, TEXT * 200, BYTES, 1 << 18))
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


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, "data: no data folder, cannot read index.json .No such file"),
    "no index": (lambda f: (f / "index.json").unlink(), "no data folder, cannot read index.json"),
    "no JSON": (lambda f: (f / "index.json").write_text("{"), "index.json: not the index .* JSON"),
    "other format": (lambda f: set_index(f, format="x"), "index.json: not the index"),
    "nested": (lambda f: (f / "index.json").write_text("[" * 99999), "index.json: not the index"),
    "later version": (lambda f: set_index(f, version=2), "version 2, this Sterna reads version 1"),
    **{f"{field} changed": (
        lambda f, field=field: set_index(f, **{field: "x"}), "the file was changed") for field in (
            "tokenizer", "vocab", "separator", "split", "train", "heldout", "shards", "sources",
            "sha256", "checksum", "more")},
    "shard missing": (lambda f: (f / "train-00002.bin").unlink(), "00002.bin: cannot read the sh"),
    "shard truncated": (lambda f: rewrite(f / "train-00002.bin", lambda data: data[:-1]),
                        r"00002.bin: must have 2,026 bytes, got 2,025"),
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


def change_bytes(folder: Path) -> None:
    rewrite(folder / "train-00001.bin", lambda data: data[:-1] + bytes([data[-1] ^ 1]))
    rewrite(folder / "heldout.txt", lambda text: b"X" + text[1:])
    ShardText(folder)       # which does not read all


def swap_shards(folder: Path) -> None:
    first, second = (folder / f"train-0000{number}.bin" for number in (0, 1))
    tokens = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(tokens)


@pytest.mark.parametrize(("change", "said"), [
    (lambda folder: None, []),
    (change_bytes, ["/train-00001.bin: the tokens are not those that were built",
                    "/heldout.txt: the text is not the one that was built"]),
    (swap_shards, [f"/train-0000{number}.bin: the tokens are not those that were built"
                   for number in (0, 1)])])
def test_what_keeps_its_size_is_found_by_its_hash(
        whole: Path, tmp_path: Path, change: Callable[[Path], None], said: list[str]) -> None:
    folder = shutil.copytree(whole, tmp_path / "data")
    change(folder)
    assert verify(folder) == [f"{folder}{line}" for line in said]
