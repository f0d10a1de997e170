"""Byte-level byte-pair encoding (arXiv 1508.07909 on bytes, like GPT-2's), without a library.

Its first 256 tokens are the bytes, so it can encode every text, UTF-8 or not. A merge never crosses
a word boundary. A word is a run of letters, digits or other signs with at most one space before it,
or a run of blanks, without its last one if a word follows. Every byte from 128 on counts as a
letter: so bytes need not be UTF-8 to be split into words.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from sterna.model.checks import check_fields
from sterna.model.tokenizer import as_bytes
from sterna.model.tokens.tokenizer import check_tokens

__all__ = [
    "BPE_VERSION", "MOST_BYTES", "MOST_TOKENS", "WORD_PATTERN", "BytePairTokenizer",
    "last_cut", "words_of",
]

WORD_PATTERN = (
    r" ?[A-Za-z\x80-\xff]+"
    r"| ?[0-9]+"
    r"| ?[^\t-\r 0-9A-Za-z\x80-\xff]+"
    r"|[\t-\r ]+(?![^\t-\r ])"
    r"|[\t-\r ]+")
r"""A word, as a regular expression on bytes, or on characters U+0000 to U+00FF in their place.

GPT-2 does the same with Unicode classes instead of ASCII classes. ``\t-\r`` are tab, line feed,
vertical tab, form feed and carriage return.
"""

_WORD = re.compile(WORD_PATTERN.encode())
_BLANK, _LETTER, _DIGIT, _OTHER = range(4)
_KINDS = np.full(256, _OTHER, dtype=np.uint8)
_KINDS[list(b"\t\n\v\f\r ")] = _BLANK
_KINDS[list(b"0123456789")] = _DIGIT
_KINDS[[byte for byte in range(256) if byte >= 128 or chr(byte).isalpha()]] = _LETTER


def words_of(text: bytes) -> list[bytes]:
    """The words of a text; concatenated, they are the text.

    >>> words_of(b"if x1 == 2:\\n    return")
    [b'if', b' x', b'1', b' ==', b' 2', b':', b'\\n   ', b' return']
    """
    return _WORD.findall(text)


def last_cut(text: bytes) -> int:
    """The last position inside a text that is a word boundary regardless of what follows the text.

    That is the end of a run of non-blank characters of one kind; 0 if there is none.

    >>> last_cut(b"some words"), last_cut(b"word"), last_cut(b"x = 1  ")
    (4, 0, 5)
    """
    kinds = _KINDS[np.frombuffer(text, dtype=np.uint8)]
    places = np.flatnonzero((kinds[:-1] != _BLANK) & (kinds[1:] != kinds[:-1]))
    return int(places[-1]) + 1 if places.size else 0


BPE_VERSION = 1
"""Version of the rules that give merges their meaning: words, and the order of merges."""

MOST_TOKENS = 1 << 16
"""The largest vocabulary: a token is a 16-bit number."""

MOST_BYTES = 1 << 24
"""Limit on the total length of all spellings: otherwise a file of 60 merges, each doubling the one
before it, would fill any memory."""

_FORMAT = "sterna tokenizer"
_FIELDS = ("format", "version", "kind", "merges")
_END_OF_TEXT = "end_of_text"
_BYTES = 256
_PART = 1 << 20             # bytes cut into words at once: memory grows with them
_MOST_KNOWN_WORDS = 1 << 18


class BytePairTokenizer:
    """A tokenizer that merges pairs of tokens, starting from bytes.

    Each word of a text begins as its bytes. Of all adjacent pairs that have a merge, the first in
    the list is merged, its leftmost occurrence first, until none is left. Raises ValueError if a
    merge uses tokens not yet made or occurs twice, or if there are more than 65,536 tokens or they
    spell more than 16 MiB together.

    Parameters
    ----------
    merges
        Whole numbers ``[merges, 2]``: the left and the right token of each, in the order of
        training. A merge makes the token with the lowest unused number, from 256 on, or reuses
        that of an earlier merge that spells the same bytes.
    end_of_text
        Whether a last token ends a document.

    >>> tokenizer = BytePairTokenizer([(116, 104), (256, 101)])
    >>> tokenizer.vocab, tokenizer.spellings[256:]
    (258, (b'th', b'the'))
    >>> tokenizer.encode("the moth").tolist()
    [257, 32, 109, 111, 256]
    """

    kind = "bpe"
    begin: tuple[int, ...] = ()

    def __init__(
        self, merges: Sequence[tuple[int, int]] | np.ndarray, *, end_of_text: bool = False,
    ) -> None:
        self.merges = _checked(merges)
        """The merges, uint16 ``[merges, 2]``."""
        spellings = [bytes([value]) for value in range(_BYTES)]
        token_of = {spelling: token for token, spelling in enumerate(spellings)}
        made: dict[int, tuple[int, int]] = {}
        size = _BYTES
        for rank, (left, right) in enumerate(self.merges.tolist()):
            if max(left, right) >= len(spellings):
                raise ValueError(
                    f"merge {rank} must be of two of the {len(spellings)} tokens before it, got "
                    f"{left} and {right}")
            if _pair(left, right) in made:
                raise ValueError(f"merge {rank} occurs twice: {left} and {right}")
            spelling = spellings[left] + spellings[right]
            token = token_of.setdefault(spelling, len(spellings))
            if token == len(spellings):
                spellings.append(spelling)
                size += len(spelling)
            if size > MOST_BYTES:
                raise ValueError(f"the tokens must spell at most {MOST_BYTES:,} bytes together, "
                                 f"merge {rank} makes it {size:,}")
            made[_pair(left, right)] = rank, token
        self.end_of_text = len(spellings) if end_of_text else None
        if end_of_text:
            spellings.append(b"")
        if len(spellings) > MOST_TOKENS:
            raise ValueError(
                f"a tokenizer has at most {MOST_TOKENS:,} tokens, got {len(spellings):,}")
        self.spellings = tuple(spellings)
        self.vocab = len(spellings)
        self._words = _Words(made)

    def encode(self, text: str | bytes) -> np.ndarray:
        """The tokens of a text, int64 ``[tokens]``."""
        rest = memoryview(as_bytes(text))
        found = []
        while rest:
            size = _PART
            while size < len(rest) and not (cut := last_cut(bytes(rest[:size]))):
                size *= 2           # one word is this long
            part = bytes(rest[:cut if size < len(rest) else len(rest)])
            found.append(b"".join(map(self._words.__getitem__, words_of(part))))
            rest = rest[len(part):]
        return np.frombuffer(b"".join(found), dtype=np.uint16).astype(np.int64)

    def decode(self, tokens: np.ndarray | list[int]) -> str:
        """The text of tokens; bytes that are not UTF-8 become U+FFFD."""
        values = check_tokens(tokens, self.vocab)
        return b"".join(map(self.spellings.__getitem__, values.tolist())).decode(errors="replace")

    def last_cut(self, text: bytes) -> int:
        """The last word boundary where the text may be cut regardless of what follows."""
        return last_cut(text)

    def to_json(self) -> dict[str, Any]:
        """The content of a tokenizer file."""
        content = {"format": _FORMAT, "version": BPE_VERSION, "kind": self.kind,
                   "merges": self.merges.tolist()}
        return content if self.end_of_text is None else {**content, _END_OF_TEXT: True}

    @classmethod
    def from_json(cls, content: Any) -> BytePairTokenizer:
        """Undo :meth:`to_json`.

        Raises ValueError if the content is anything else or of another version.
        """
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError("not a Sterna tokenizer")
        if content.get("version") != BPE_VERSION or content.get("kind") != cls.kind:
            raise ValueError(
                f"expected a tokenizer of the kind {cls.kind}, version {BPE_VERSION}, got "
                f"{content.get('kind')!r}, version {content.get('version')!r}")
        ends = _END_OF_TEXT in content
        check_fields("the tokenizer", content, (*_FIELDS, _END_OF_TEXT) if ends else _FIELDS)
        if ends and content[_END_OF_TEXT] is not True:
            raise ValueError(f"{_END_OF_TEXT} must be true or left out, got "
                             f"{content[_END_OF_TEXT]!r}")
        return cls(content["merges"], end_of_text=ends)

    @property
    def sha256(self) -> str:
        """SHA-256, in hexadecimal, of :meth:`to_json` with sorted keys and no spaces."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _checked(merges: Sequence[tuple[int, int]] | np.ndarray) -> np.ndarray:
    try:
        array = np.asarray(merges if len(merges) else np.zeros((0, 2), dtype=np.uint16))
    except (TypeError, ValueError):     # not a list, or rows of different lengths
        array = np.zeros(0)
    if array.ndim != 2 or array.shape[1] != 2 or array.dtype.kind not in "iu":
        raise ValueError("merges must be whole numbers, two for each merge")
    if array.size and not 0 <= array.min() <= array.max() < MOST_TOKENS:
        raise ValueError(
            f"merges must be of tokens from 0 to {MOST_TOKENS - 1}, got {array.min()} to "
            f"{array.max()}")
    return array.astype(np.uint16)


def _pair(left: int, right: int) -> int:
    """A pair as one number, a faster key than two."""
    return left << 16 | right


class _Words(dict[bytes, bytes]):
    """A cache of the tokens of words, as the bytes of uint16; missing ones are computed."""

    def __init__(self, made: dict[int, tuple[int, int]]) -> None:
        self._made = made

    def __missing__(self, word: bytes) -> bytes:
        if len(self) >= _MOST_KNOWN_WORDS:
            self.clear()
        tokens = self[word] = np.array(_merged_word(word, self._made), dtype=np.uint16).tobytes()
        return tokens


def _merged_word(word: bytes, made: dict[int, tuple[int, int]]) -> list[int]:
    """The tokens of one word; ``made`` gives the rank and the token of a pair.

    A heap orders the pairs by rank and position, so a word of n bytes, possibly a whole text
    without blanks, takes O(n log n).
    """
    tokens: list[int | None] = [*word]
    after, before = list(range(1, len(word) + 1)), list(range(-1, len(word) - 1))
    waiting: list[tuple[int, int, int]] = []

    def propose(left: int) -> None:
        """Put the pair that begins at ``left`` on the heap, if it has a merge."""
        if left >= 0 and after[left] < len(word):
            # Tokens that are still linked have not been merged away: they are not None.
            pair = _pair(tokens[left], tokens[after[left]])     # type: ignore[arg-type]
            if pair in made:
                heapq.heappush(waiting, (made[pair][0], left, pair))

    for at in range(len(word) - 1):
        propose(at)
    while waiting:
        _, left, pair = heapq.heappop(waiting)
        right = after[left]
        # One of the two may have been merged since.
        if right == len(word) or tokens[left] is None or pair != _pair(
                tokens[left], tokens[right]):                   # type: ignore[arg-type]
            continue
        tokens[left], tokens[right] = made[pair][1], None
        after[left] = after[right]
        if after[left] < len(word):
            before[after[left]] = left
        propose(before[left])
        propose(left)
    return [token for token in tokens if token is not None]
