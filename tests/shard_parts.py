"""Parts of the tests of data folders: a tokenizer of pairs, a folder, reading shards by hand."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from sterna.model.shards.build import BuildOptions, build
from sterna.model.shards.split import Split
from sterna.model.tokens.tokenizer import Tokenizer

__all__ = ["PairTokenizer", "folder_of", "stored_tokens"]

_HEADER_BYTES = 32


class PairTokenizer:
    """Two neighbours in a word are one token: what a token is depends on where a text was cut.

    A word ends with a space. With ``largest`` 128, pairs of ASCII characters alone are tokens.
    """

    kind = "pairs"
    end_of_text: int | None = None

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self.vocab = 256 + largest * largest
        self.spellings = tuple(bytes([value]) for value in range(256)) + tuple(
            bytes([a, b]) for a in range(largest) for b in range(largest))

    def encode(self, text: str | bytes) -> np.ndarray:
        data = text.encode() if isinstance(text, str) else text
        tokens: list[int] = []
        while data:
            word, space, data = data.partition(b" ")
            word += space
            while word:
                a, b = word[0], word[1] if len(word) > 1 else self.largest
                pair = max(a, b) < self.largest
                tokens.append(256 + a * self.largest + b if pair else a)
                word = word[1 + pair:]
        return np.array(tokens, dtype=np.int64)

    def decode(self, tokens: np.ndarray | list[int]) -> str:
        return b"".join(self.spellings[token] for token in tokens).decode(errors="replace")

    def last_cut(self, text: bytes) -> int:
        return text.rfind(b" ") + 1

    def to_json(self) -> Any:
        return {"kind": self.kind, "largest": self.largest}

    @property
    def sha256(self) -> str:
        return hashlib.sha256(f"pairs {self.largest}".encode()).hexdigest()


def folder_of(folder: Path, text: str, tokenizer: Tokenizer, shard_tokens: int) -> Path:
    """A data folder of one text, a tenth of which is held out."""
    folder.mkdir(exist_ok=True)
    (folder / "in.txt").write_text(text)
    build([str(folder / "in.txt")], folder / "data", BuildOptions(
        tokenizer, Split(0.1), shard_tokens=shard_tokens, block_bytes=1000))
    return folder / "data"


def stored_tokens(folder: Path, dtype: str) -> np.ndarray:
    """All tokens of a data folder, without what reads them elsewhere."""
    shards = sorted(folder.glob("train-*.bin"))
    return np.concatenate([np.frombuffer(path.read_bytes()[_HEADER_BYTES:], dtype)
                           for path in shards])
