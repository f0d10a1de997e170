"""Which part of a document is held out: a function of its content and of nothing before it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from sterna.model.checks import check_whole, real_number
from sterna.model.shards.documents import Document

__all__ = ["LONG_BYTES", "Split"]

LONG_BYTES = 1 << 16
"""From so many bytes on, a document is cut instead of being held out or trained on as a whole."""

_LINE_BYTES = 1 << 16       # how far a line's end is looked for


@dataclass(frozen=True, slots=True)
class Split:
    """A rule that holds out about a ``fraction`` of the text.

    Of a long document the end is held out. A shorter one is held out if the hash of its text says
    so, so that two of the same text are always on one side.

    Parameters
    ----------
    fraction
        From 0, which holds nothing out, to 0.5.
    seed
        Another one chooses other documents.
    long_bytes
        From so many bytes on a document is a long one; 1 cuts all.

    Raises
    ------
    ValueError
        If one of them is out of range.
    """

    fraction: float = 0.01
    seed: int = 0
    long_bytes: int = LONG_BYTES

    def __post_init__(self) -> None:
        if not 0.0 <= real_number("heldout", self.fraction) <= 0.5:
            raise ValueError(f"heldout must be from 0 to 0.5, got {self.fraction}")
        check_whole("seed", self.seed, 0, (1 << 64) - 1)
        check_whole("long_bytes", self.long_bytes, 1)

    def to_json(self) -> dict[str, Any]:
        """What the index says of it."""
        return {"fraction": self.fraction, "seed": self.seed, "long_bytes": self.long_bytes}

    def cut(self, document: Document) -> int:
        """Number of bytes that are trained on: all, none, or those before the end."""
        if not self.fraction:
            return document.size
        if document.size >= self.long_bytes:
            return self._end(document)
        document.file.seek(0)
        digest = hashlib.blake2b(
            document.file.read(document.size), digest_size=8, salt=self.seed.to_bytes(16, "little"))
        chosen = int.from_bytes(digest.digest(), "little") < self.fraction * 2.0 ** 64
        return 0 if chosen else document.size

    def _end(self, document: Document) -> int:
        """Where the end begins: after a line, if one ends soon, else between characters."""
        cut = max(1, round(document.size * (1.0 - self.fraction)))
        document.file.seek(cut - 1)
        text = document.file.read(max(5, min((document.size - cut) // 2, _LINE_BYTES)))
        line_end = text.find(b"\n")
        if line_end >= 0:
            return cut + line_end
        begun = 1       # byte of the cut; those after it may belong to a character before it
        while begun < len(text) and text[begun] & 0xC0 == 0x80:
            begun += 1
        return cut - 1 + begun
