"""Documents cut into pieces that are encoded one by one, so that none has to fit into memory."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from sterna.model.shards.documents import Document
from sterna.model.tokens.tokenizer import Tokenizer

__all__ = ["Piece", "batches", "cut_for", "read_part"]

Piece: TypeAlias = tuple[str, bytes | None]
"""The name of a document, for messages, and some of its text; None is the token that ends the
document before."""


def read_part(document: Document, start: int, end: int, block_bytes: int) -> Iterator[bytes]:
    """The bytes of a document from ``start`` to ``end``, in blocks, checked to be UTF-8.

    Raises
    ------
    ValueError
        Naming the document, and the byte that is no UTF-8.
    """
    document.file.seek(start)
    decoder = codecs.getincrementaldecoder("utf-8")()
    while start < end:
        block = document.file.read(min(block_bytes, end - start))
        if not block:
            raise ValueError(f"{document.name}: became shorter while it was read")
        waiting = decoder.getstate()[0]     # the beginning of a character
        try:
            decoder.decode(block, start + len(block) == end)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{document.name}: not UTF-8 text (byte 0x{error.object[error.start]:02x} at "
                f"offset {start - len(waiting) + error.start})") from error
        start += len(block)
        yield block


def cut_for(tokenizer: Tokenizer, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Blocks with the same text, cut where the tokens do not depend on the cut.

    Where there is no such place, blocks are joined until there is one.
    """
    rest = b""
    for block in blocks:
        text = rest + block
        cut = tokenizer.last_cut(text)
        if cut:
            yield text[:cut]
        rest = text[cut:]
    if rest:
        yield rest


def batches(pieces: Iterable[Piece], batch_bytes: int) -> Iterator[list[Piece]]:
    """Pieces in lists of at least so many bytes, but for the last."""
    batch, size = [], 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece[1] or b"")
        if size >= batch_bytes:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
