"""A data folder as training text: its tokens stay on disk."""

from __future__ import annotations

import mmap
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

import numpy as np

from sterna.model.shards.files import HELDOUT, INDEX, ShardError, pack_header, read_index
from sterna.model.tokens.text import first_characters

__all__ = ["ShardText"]

_MOST_OPEN = 64     # each map uses one of the process's open files
_ADVISES = hasattr(mmap, "MADV_RANDOM") and hasattr(mmap, "MADV_DONTNEED")  # not on Windows
_READS_KEPT = 64


class _Mapped:
    """The tokens of a shard in their stored type, mapped into memory."""

    def __init__(self, path: Path, dtype: np.dtype, count: int, begin: int) -> None:
        with path.open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if _ADVISES:    # windows are at random positions: no read-ahead
            self._memory.madvise(mmap.MADV_RANDOM)
        self.tokens = np.frombuffer(self._memory, dtype, count, begin)

    def give_back(self) -> None:
        """Release the pages read so far, which would otherwise stay resident during a long run;
        they are read again when needed."""
        if _ADVISES:
            self._memory.madvise(mmap.MADV_DONTNEED)


class ShardText:
    """The tokens of a folder that ``sterna data build`` wrote.

    Shards are mapped into memory, so only the requested pages are read. Any number of processes may
    read one folder. Raises ShardError if a file is missing, damaged or something else; hashes are
    checked only by :func:`sterna.model.shards.files.verify`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        """Its path."""
        self._written = self._stamp()
        self.index = read_index(folder)
        """Its index."""
        self.name, self.sha256 = self.folder.resolve().name, self.index.sha256
        self.tokenizer, self.general = self.index.tokenizer, None
        self._ends = list(accumulate(shard.tokens for shard in self.index.shards))
        self._header_bytes = len(pack_header(self.index.dtype, 0))
        self._shard = lru_cache(_MOST_OPEN)(self._map)
        self._read: list[_Mapped] = []      # since pages were last released

    def __len__(self) -> int:
        """Number of tokens to train on."""
        return self._ends[-1]

    def piece(self, start: int, count: int) -> np.ndarray:
        """Tokens from ``start`` on, int64 ``[count]``, wrapping around at the end.

        Raises ShardError if the folder was replaced meanwhile, or a token is outside the
        vocabulary.
        """
        tokens = np.empty(count, dtype=np.int64)
        filled = 0
        while filled < count:
            number = bisect_right(self._ends, start)
            shard = self._shard(number)
            offset = start - (self._ends[number] - len(shard.tokens))
            found = shard.tokens[offset:offset + count - filled]
            if found.max() >= self.tokenizer.vocab:
                raise ShardError(
                    f"{self.folder / self.index.shards[number].file}: is damaged: it holds token "
                    f"{found.max()}, and the tokenizer has {self.tokenizer.vocab}")
            tokens[filled:filled + len(found)] = found
            self._note_read(shard)
            filled += len(found)
            start = (start + len(found)) % len(self)
        return tokens

    def heldout(self, most_bytes: int | None = None) -> bytes:
        """The held-out text, or its beginning; no more of the file is read."""
        with (self.folder / HELDOUT).open("rb") as file:
            if most_bytes is None:
                return file.read()
            return first_characters(file.read(most_bytes + 1), most_bytes)

    def _stamp(self) -> tuple[int, ...] | None:
        """Distinguishes this index from a replacement; None if there is none."""
        try:
            found = (self.folder / INDEX).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size

    def _note_read(self, shard: _Mapped) -> None:
        self._read.append(shard)
        if len(self._read) >= _READS_KEPT:
            for each in set(self._read):
                each.give_back()
            self._read.clear()

    def _map(self, number: int) -> _Mapped:
        """One shard."""
        shard = self.index.shards[number]
        if self._stamp() != self._written:
            raise ShardError(f"{self.folder}: was replaced or removed while it was read")
        return _Mapped(
            self.folder / shard.file, self.index.dtype, shard.tokens, self._header_bytes)
