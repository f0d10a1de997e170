"""Tokenizers and texts in tokens, against plain bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.model.corpus import Corpus
from sterna.model.tokens.text import MemoryText
from sterna.model.tokens.tokenizer import ByteTokenizer


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
