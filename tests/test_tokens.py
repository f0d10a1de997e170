"""Tokenizers and texts in tokens: bytes; byte pairs against the package and a plain loop."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.model.corpus import Corpus
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.tokens import bpe
from sterna.model.tokens.bpe import BytePairTokenizer, words_of
from sterna.model.tokens.bpe_training import package_tokenizer, train_bpe
from sterna.model.tokens.files import load_tokenizer, save_tokenizer, tokenizer_from_json
from sterna.model.tokens.text import MemoryText
from sterna.model.tokens.tokenizer import ByteTokenizer, spelled_bytes


@given(st.binary())
def test_bytes_are_their_own_tokens(data: bytes) -> None:
    tokenizer = ByteTokenizer()
    tokens = tokenizer.encode(data)
    assert bytes(tokens.tolist()) == b"".join(tokenizer.spellings[t] for t in tokens) == data
    assert tokenizer.decode(tokens) == data.decode(errors="replace")


def test_what_a_vocabulary_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="byte 195 at offset 1, and this model knows only ASCII"):
        ByteTokenizer(128).encode("aß")
    with pytest.raises(ValueError, match="tokens must be from 0 to 127, got 0 to 128"):
        ByteTokenizer(128).decode([0, 128])
    with pytest.raises(ValueError, match="from 2 to 256, got 257"):
        ByteTokenizer(257)


@given(st.binary(min_size=1, max_size=40), st.data())
def test_a_piece_goes_round_the_end(data: bytes, draw: st.DataObject) -> None:
    text = MemoryText(Corpus("x", data, b""), ByteTokenizer())
    start = draw.draw(st.integers(0, len(data) - 1))
    count = draw.draw(st.integers(0, len(data)))
    piece = text.piece(start, count)
    assert piece.dtype == np.int64
    assert bytes(piece.tolist()) == (data + data)[start:start + count]
    assert len(text) == len(data)


@given(st.text(min_size=1), st.data())
def test_heldout_is_cut_between_characters(text: str, draw: st.DataObject) -> None:
    data = text.encode(errors="replace")
    most = draw.draw(st.integers(0, len(data) + 1))
    cut = MemoryText(Corpus("x", b"x", data), ByteTokenizer()).heldout(most)
    assert cut == data[:most].decode(errors="ignore").encode()
    assert MemoryText(Corpus("x", b"x", data), ByteTokenizer()).heldout() == data


TRAINED = train_bpe([bundled_heldout(), "größer, κόσμος 世界 naïve".encode() * 9], 700)
PACKAGE = package_tokenizer(TRAINED)
PIECES = ("a", "the", " of", "ing", "x1", "23", " ", "  ", "\n", "\t", "\r\n", "\x0b", "\x00", "_",
          "...", "--", "größer", "世界", "κόσμος", "\x7f", "\xa0", "\u2003", "naïve", "😀")
texts = st.lists(st.sampled_from(PIECES) | st.characters(exclude_categories=["Cs"])).map("".join)
mixed = st.lists(
    st.sampled_from([piece.encode() for piece in PIECES]) | st.binary(max_size=3)).map(b"".join)


def naive_tokens(tokenizer: BytePairTokenizer, text: bytes) -> list[int]:
    """The definition: in each word, the leftmost pair of those that come first in the list."""
    merges = {pair: rank for rank, pair in enumerate(map(tuple, tokenizer.merges.tolist()))}
    found: list[int] = []
    for word in words_of(text):
        tokens = [*word]
        while pairs := [
                (merges[pair], at) for at, pair in enumerate(pairwise(tokens))
                if pair in merges]:
            _, at = min(pairs)
            spelling = b"".join(tokenizer.spellings[token] for token in tokens[at:at + 2])
            tokens[at:at + 2] = [tokenizer.spellings.index(spelling)]
        found += tokens
    return found


@given(texts)
def test_a_text_has_the_tokens_that_the_package_gives_it(text: str) -> None:
    assert TRAINED.encode(text).tolist() == PACKAGE.encode(text).ids


@given(mixed)
def test_any_bytes_have_the_tokens_of_the_definition(data: bytes) -> None:
    tokens = TRAINED.encode(data)
    assert tokens.tolist() == naive_tokens(TRAINED, data)
    assert b"".join(TRAINED.spellings[token] for token in tokens) == data
    assert TRAINED.decode(tokens) == data.decode(errors="replace")
    assert spelled_bytes(TRAINED, tokens) == len(data)


@given(mixed, mixed)
def test_a_text_may_be_cut_where_the_tokenizer_says(data: bytes, more: bytes) -> None:
    for tokenizer in (TRAINED, ByteTokenizer()):
        cut = tokenizer.last_cut(data)
        parts = np.concatenate([tokenizer.encode(data[:cut]), tokenizer.encode(data[cut:] + more)])
        assert parts.tolist() == tokenizer.encode(data + more).tolist()


def test_a_text_without_blanks_longer_than_a_part_is_one_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bpe, "_PART", 1 << 10)
    text = b"a" * 3001
    tokens = BytePairTokenizer([(97, 97), (256, 256)]).encode(text)
    assert tokens.tolist() == [257] * (len(text) // 4) + [97]


def test_two_merges_to_the_same_spelling_give_one_token() -> None:
    tokenizer = BytePairTokenizer([(97, 98), (98, 99), (256, 99), (97, 257)])    # ab bc abc abc
    assert tokenizer.vocab == 259
    assert tokenizer.spellings[258] == b"abc"
    assert tokenizer.encode(b"abc").tolist() == naive_tokens(tokenizer, b"abc") == [258]


def test_the_same_text_gives_the_same_file(tmp_path: Path) -> None:
    text = bundled_heldout()[:9000]
    first, second = (save_tokenizer(train_bpe([text], 300), tmp_path / name) for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    again = load_tokenizer(first)
    assert again.sha256 == train_bpe([text], 300).sha256 != TRAINED.sha256
    assert again.to_json() == json.loads(first.read_text())


def test_the_largest_vocabulary_is_65536() -> None:
    merges = [(left, right) for left in range(256) for right in range(255)]
    tokenizer = BytePairTokenizer(merges)
    assert tokenizer.vocab == 65_536
    assert tokenizer.encode(b"yzyz").tolist() == naive_tokens(tokenizer, b"yzyz")
    with pytest.raises(ValueError, match="at most 65,536 tokens, got 65,537"):
        BytePairTokenizer([*merges, (0, 255)])


def test_a_text_with_too_few_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match="twice for 257 tokens only, and 300 were asked for"):
        train_bpe([b"abab"], 300)
    with pytest.raises(ValueError, match="vocab must be a whole number from 257 to 65536, got 256"):
        train_bpe([b"abab"], 256)


@pytest.mark.parametrize(("change", "message"), [
    ({"merges": [[256, 1]]}, "merge 0 must be of two of the 256 tokens before it, got 256 and 1"),
    ({"merges": [[97, 97], *([token, token] for token in range(256, 316))]},
     "spell at most 16,777,216 bytes together, merge 22 makes it 16,777,470"),
    ({"merges": [[1, 2], [1, 2]]}, "merge 1 occurs twice: 1 and 2"),
    ({"merges": [[1, 2, 3]]}, "two for each merge"),
    ({"merges": [[1], [1, 2]]}, "two for each merge"),
    ({"merges": [[0.5, 1]]}, "two for each merge"),
    ({"merges": 7}, "two for each merge"),
    ({"merges": [[1, 65536]]}, "from 0 to 65535, got 1 to 65536"),
    ({"version": 2}, "version 1, got 'bpe', version 2"),
    ({"kind": "unigram"}, "kind bpe, version 1, got 'unigram'"),
    ({"format": "x"}, "not a Sterna tokenizer"),
    ({"more": 1}, "unknown: more"),
    (None, r"t\.json: not a Sterna tokenizer"),
])
def test_a_wrong_tokenizer_file_is_refused(tmp_path: Path, change: object, message: str) -> None:
    path = tmp_path / "t.json"
    path.write_text("[" * 99_999 if change is None else json.dumps(
        {**BytePairTokenizer([(97, 98)]).to_json(), **change}))
    with pytest.raises(ValueError, match=message) as caught:
        load_tokenizer(path)
    assert str(path) in str(caught.value)


def test_a_byte_order_mark_before_a_tokenizer_is_skipped(tmp_path: Path) -> None:
    path = save_tokenizer(TRAINED, tmp_path / "t.json")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_tokenizer(path).sha256 == TRAINED.sha256


def test_a_tokenizer_belongs_to_a_vocabulary(tmp_path: Path) -> None:
    assert tokenizer_from_json("bytes", 128).vocab == 128
    assert tokenizer_from_json(TRAINED.to_json(), 700).sha256 == TRAINED.sha256
    with pytest.raises(ValueError, match="the tokenizer has 700 tokens, and the model 512"):
        tokenizer_from_json(TRAINED.to_json(), 512)
    with pytest.raises(ValueError, match="cannot read the tokenizer"):
        load_tokenizer(tmp_path / "none.json")
