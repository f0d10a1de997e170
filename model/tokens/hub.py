"""A tokenizer of another project, as ``tokenizer.json`` holds it, run by the package tokenizers."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cached_property
from typing import Any

import numpy as np

from sterna.model.checks import check_fields, check_whole
from sterna.model.tokens.tokenizer import check_tokens

__all__ = ["HubTokenizer"]

_FORMAT = "sterna tokenizer"
_FIELDS = ("format", "version", "kind", "end_of_text", "json")
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_BYTE = re.compile("<0x([0-9A-F]{2})>")


class HubTokenizer:
    """Any tokenizer whose tokens stand for bytes: byte-level, or with U+2581 for a space and
    ``<0x0A>`` for a byte that has no other token.

    Parameters
    ----------
    text
        The content of ``tokenizer.json``.
    end_of_text
        The token that ends a document, or None.

    Raises
    ------
    ValueError
        If the content is no tokenizer, or one of another kind.
    """

    kind = "hub"
    version = 1

    def __init__(self, text: str, end_of_text: int | None = None) -> None:
        from tokenizers import Tokenizer
        self.text = text
        """The content of ``tokenizer.json``."""
        try:
            self._tokenizer = Tokenizer.from_str(text)
        except Exception as error:      # the package raises no class of its own
            raise ValueError(f"not a tokenizer.json ({error})") from error
        self._tokenizer.encode_special_tokens = True        # text that reads like one is text
        self.vocab: int = self._tokenizer.get_vocab_size()
        if end_of_text is not None:
            check_whole("end_of_text", end_of_text, 0, self.vocab - 1)
        self.end_of_text = end_of_text
        found = self._tokenizer.encode("a")
        ones = [*found.special_tokens_mask, 0].index(0)
        self.begin: tuple[int, ...] = tuple(found.ids[:ones])
        decoder = json.dumps(json.loads(text).get("decoder"))
        self._kinds = set(re.findall(r'"type": "(\w+)"', decoder))
        if not self._kinds & {"ByteLevel", "Metaspace", "ByteFallback"}:
            raise ValueError(
                f"a tokenizer must be byte-level, or have tokens with {_SPACE} for a space; the "
                f"decoder of this one is of {', '.join(sorted(self._kinds)) or 'no kind'}")

    @cached_property
    def spellings(self) -> tuple[bytes, ...]:
        """The bytes of every token; special ones spell nothing."""
        special = {i for i, token in self._tokenizer.get_added_tokens_decoder().items()
                   if token.special}
        return tuple(b"" if i in special else self._spelling(self._tokenizer.id_to_token(i) or "")
                     for i in range(self.vocab))

    def _spelling(self, piece: str) -> bytes:
        if "ByteLevel" in self._kinds:
            return bytes(_BYTE_OF[character] for character in piece)
        byte = _BYTE.fullmatch(piece) if "ByteFallback" in self._kinds else None
        return bytes.fromhex(byte[1]) if byte else piece.replace(_SPACE, " ").encode()

    def encode(self, text: str | bytes) -> np.ndarray:
        """The tokens of a text, int64 ``[tokens]``, without :attr:`begin`; bytes that are not UTF-8
        count as U+FFFD. Together they spell the text, or a space and the text."""
        if isinstance(text, bytes):
            text = text.decode(errors="replace")
        found = self._tokenizer.encode(text, add_special_tokens=False)
        return np.array(found.ids, dtype=np.int64)

    def decode(self, tokens: np.ndarray | list[int]) -> str:
        """The text of tokens; bytes that are not UTF-8 become U+FFFD."""
        known = check_tokens(tokens, self.vocab)
        return b"".join(self.spellings[token] for token in known).decode(errors="replace")

    def last_cut(self, text: bytes) -> int:
        """0: nothing is known of where such a text may be cut."""
        return 0

    def to_json(self) -> dict[str, Any]:
        """Its parameters, ``json`` among them as text."""
        return {"format": _FORMAT, "version": self.version, "kind": self.kind,
                "end_of_text": self.end_of_text, "json": self.text}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> HubTokenizer:
        """Undo :meth:`to_json`. Raises ValueError if it is something else."""
        check_fields("tokenizer", content, _FIELDS)
        if content["version"] != cls.version or not isinstance(content["json"], str):
            raise ValueError(f"a tokenizer of the kind {cls.kind} must be of version "
                             f"{cls.version}, got {content['version']!r}")
        return cls(content["json"], content["end_of_text"])

    @property
    def sha256(self) -> str:
        """SHA-256 of its JSON."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()


def _characters() -> dict[str, int]:
    """The bytes of GPT-2's byte-level characters: printable ones stand for themselves, the others
    for U+0100 on."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {
        chr(256 + i): byte for i, byte in enumerate(moved)}


_BYTE_OF = _characters()
