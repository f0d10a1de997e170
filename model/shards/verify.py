"""Reading a data folder in full, to see whether it still is what was built."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sterna.model.shards.files import HELDOUT, INDEX, Index, pack_header, read_index

__all__ = ["verify"]

_BLOCK_BYTES = 1 << 22


def verify(
    folder: str | Path, progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[str]:
    """Compare all tokens and the held-out text with the hashes of the index, and its counts with
    them and with each other.

    Parameters
    ----------
    folder
        The data folder.
    progress
        Called with the bytes read and their total.

    Returns
    -------
    list
        A line for each thing that is wrong; empty if nothing is.

    Raises
    ------
    ShardError
        If a file is missing or has another size; then nothing was read.
    """
    folder, index = Path(folder), read_index(folder)
    total = index.tokens * index.dtype.itemsize + index.heldout.bytes
    header_bytes = len(pack_header(index.dtype, 0))
    lengths = np.array([len(spelling) for spelling in index.tokenizer.spellings])
    done, spelled, wrong = 0, 0, []
    everything = hashlib.sha256()
    for shard in index.shards:
        digest, largest = hashlib.sha256(), 0
        with (folder / shard.file).open("rb") as file:
            file.seek(header_bytes)
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
                everything.update(block)
                tokens = np.frombuffer(block, index.dtype)
                largest = max(largest, int(tokens.max()))
                spelled += int(lengths[tokens[tokens < lengths.size]].sum())
                progress(done := done + len(block), total)
        if digest.hexdigest() != shard.sha256:
            wrong.append(f"{folder / shard.file}: the tokens are not those that were built")
        elif largest >= index.tokenizer.vocab:
            wrong.append(f"{folder / shard.file}: has the token {largest}, the vocabulary ends "
                         f"at {index.tokenizer.vocab - 1}")
    if not wrong and everything.hexdigest() != index.train.sha256:
        wrong.append(f"{folder}: the shards are not those of this index, or not in its order")
    wrong += _wrong_heldout(folder, index)
    return wrong or [f"{folder / INDEX}: {line}" for line in _wrong_counts(index, spelled)]


def _wrong_heldout(folder: Path, index: Index) -> list[str]:
    with (folder / HELDOUT).open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return [] if found == index.heldout.sha256 else [
        f"{folder / HELDOUT}: the text is not the one that was built"]


def _wrong_counts(index: Index, spelled: int) -> list[str]:
    """What the index says of sizes and documents, and its parts do not; the tokens spell so many
    bytes."""
    wrong = []
    train, heldout = index.train, index.heldout
    if train.bytes != spelled:
        wrong.append(f"train has {train.bytes:,} bytes, and the tokens spell {spelled:,}")
    divided = [train] if "file" in index.split else [train, heldout]
    separator = len(index.separator.encode())
    size = sum(each.bytes for each in divided) - sum(
        separator * max(0, each.documents - 1) for each in divided
        if each is heldout or index.tokenizer.end_of_text is None)
    read = sum(source["bytes"] for source in index.sources)
    if size != read:
        wrong.append(f"the sources have {read:,} bytes of text, and what was made of them {size:,}")
    documents = sum(each.documents for each in divided)
    there = sum(source["documents"] for source in index.sources)
    if not there <= documents <= len(divided) * there:  # the end of one may be held out
        wrong.append(f"the sources have {there:,} documents, and what was made of them "
                     f"{documents:,}")
    return wrong
