"""A tokenizer of another project, from its ``tokenizer.json``, run by the package tokenizers."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cached_property
from typing import Any

import numpy as np

from sterna.model.checks import check_fields, check_whole
from sterna.model.tokenizer import utf8
from sterna.model.tokens.tokenizer import check_tokens

__all__ = ["ForeignTokenizerError", "HubTokenizer"]

_FORMAT = "sterna tokenizer"
_FIELDS = ("format", "version", "kind", "end_of_text", "json")
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_BYTE = re.compile("<0x([0-9A-F]{2})>")
_RANDOM = ("dropout", "alpha", "nbest_size")
"""Parameters of a tokenizer's model that make its output random."""


class ForeignTokenizerError(ValueError):
    """A tokenizer with tokens that do not stand for bytes."""


class HubTokenizer:
    """Any tokenizer with tokens that stand for bytes: byte-level, or with U+2581 for a space and
    ``<0x0A>`` for a byte that has no other token.

    Other settings in a file are ignored: truncation, padding, dropout of merges, sampling.

    Parameters
    ----------
    text
        The content of ``tokenizer.json``.
    end_of_text
        The token that ends a document, or None.
    vocab
        Tokens of the model; those beyond the tokenizer's spell nothing. None for all up to the
        tokenizer's largest.

    Raises
    ------
    ForeignTokenizerError
        If the tokenizer is of another kind.
    ValueError
        If the content is not a tokenizer, or has more tokens than the model.
    """

    kind = "hub"
    version = 1

    def __init__(
        self, text: str, end_of_text: int | None = None, vocab: int | None = None,
    ) -> None:
        from tokenizers import Tokenizer
        self.text = text
        """The content of ``tokenizer.json``."""
        try:
            content = json.loads(text)
            model = {name: value for name, value in content["model"].items() if name not in _RANDOM}
            self._tokenizer = Tokenizer.from_str(json.dumps(
                {**content, "truncation": None, "padding": None, "model": model}))
        except Exception as error:      # the package has no exception class
            raise ValueError(f"not a tokenizer.json ({error})") from error
        self._kinds = set(re.findall(r'"type": "(\w+)"', json.dumps(content.get("decoder"))))
        if not self._kinds & {"ByteLevel", "Metaspace", "ByteFallback"}:
            raise ForeignTokenizerError(
                f"a tokenizer must be byte-level, or have tokens with {_SPACE} for a space; the "
                f"decoder of this one is of {', '.join(sorted(self._kinds)) or 'no kind'}")
        self._tokenizer.encode_special_tokens = True        # do not parse special tokens in text
        self._added = self._tokenizer.get_added_tokens_decoder()
        own = 1 + max(self._tokenizer.get_vocab().values(), default=-1)
        self.vocab = own if vocab is None else vocab
        if own > self.vocab:
            raise ValueError(f"the tokenizer has {own:,} tokens, and the model {self.vocab:,}")
        if end_of_text is not None:
            check_whole("end_of_text", end_of_text, 0, self.vocab - 1)
        self.end_of_text = end_of_text
        self.begin = self._begin()

    def _begin(self) -> tuple[int, ...]:
        """The tokens before a text, read from the first spelling that has such tokens."""
        for spelling in (b"a", *self.spellings):
            found = self._tokenizer.encode(spelling.decode(errors="replace"))
            if 0 in found.special_tokens_mask:
                return tuple(found.ids[:found.special_tokens_mask.index(0)])
        return ()

    @cached_property
    def spellings(self) -> tuple[bytes, ...]:
        """The bytes of every token; special tokens and unused numbers spell nothing."""
        return tuple(map(self._spelling, range(self.vocab)))

    def _spelling(self, token: int) -> bytes:
        piece = self._tokenizer.id_to_token(token) or ""
        added = self._added.get(token)
        if token == self.end_of_text or (added and added.special):
            return b""
        if "ByteLevel" in self._kinds:
            # The package matches added tokens in the text itself, before it maps bytes to
            # characters; so their characters stand for themselves.
            known = not added and all(character in _BYTE_OF for character in piece)
            return bytes(map(_BYTE_OF.__getitem__, piece)) if known else piece.encode()
        if added and not added.normalized:
            return piece.encode()
        byte = _BYTE.fullmatch(piece) if "ByteFallback" in self._kinds else None
        return bytes.fromhex(byte[1]) if byte else piece.replace(_SPACE, " ").encode()

    def encode(self, text: str | bytes) -> np.ndarray:
        """The tokens of a text, int64 ``[tokens]``, without :attr:`begin`. Together they spell the
        text, or a space and the text.

        Raises ValueError if they would spell something else, because the tokenizer lacks or changes
        a character, or if the text is not UTF-8; the message gives the position.
        """
        data = utf8(text)
        found = self._tokenizer.encode(data.decode(), add_special_tokens=False).ids
        spelled = b"".join(map(self.spellings.__getitem__, found))
        if spelled not in (data, b" " + data):
            raise ValueError(_difference(data, spelled))
        return np.array(found, dtype=np.int64)

    def decode(self, tokens: np.ndarray | list[int]) -> str:
        """The text of tokens; bytes that are not UTF-8 become U+FFFD."""
        known = check_tokens(tokens, self.vocab)
        return b"".join(self.spellings[token] for token in known).decode(errors="replace")

    def last_cut(self, text: bytes) -> int:
        """0: it is unknown where such a text may be cut."""
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


def _difference(text: bytes, spelled: bytes) -> str:
    """Describe where a text and the spelling of its tokens differ."""
    def same(spelled: bytes) -> int:
        differ = (i for i, pair in enumerate(zip(text, spelled, strict=False)) if len({*pair}) > 1)
        return next(differ, min(len(text), len(spelled)))
    before = text[:max(same(spelled), same(spelled.removeprefix(b" ")))].decode(errors="ignore")
    if before == text.decode():
        return "the tokenizer adds to the text"
    return (f"the tokenizer does not give the text back: it has no token for "
            f"{text.decode()[len(before)]!r}, character {len(before)} of the text, or changes it")


def _characters() -> dict[str, int]:
    """The bytes of GPT-2's byte-level characters: printable ones stand for themselves, those from
    U+0100 on for the others."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {
        chr(256 + i): byte for i, byte in enumerate(moved)}


_BYTE_OF = _characters()
