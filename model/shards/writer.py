"""Writing tokens into shards, in the order in which they come."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

import numpy as np

from sterna.model.shards.files import Shard, pack_header, shard_name

__all__ = ["ShardWriter"]


class ShardWriter:
    """Fills one shard after the other; how tokens arrive makes no difference to the files.

    Parameters
    ----------
    folder
        Where the shards go.
    dtype
        Of the tokens.
    shard_tokens
        Tokens of every shard but the last.

    It is to be used in a ``with`` block, which ends the last shard.
    """

    def __init__(self, folder: Path, dtype: np.dtype, shard_tokens: int) -> None:
        self._folder, self._dtype, self._shard_tokens = folder, dtype, shard_tokens
        self._file: BinaryIO | None = None
        self._written = 0       # tokens of the open shard
        self._shard, self._all = hashlib.sha256(), hashlib.sha256()
        self.shards: list[Shard] = []
        """Those that are full, and after the block all."""

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self._end_shard()
        elif self._file is not None:
            self._file.close()

    @property
    def sha256(self) -> str:
        """Hash of all tokens so far."""
        return self._all.hexdigest()

    def write(self, tokens: np.ndarray) -> None:
        """Add tokens ``[tokens]`` of the writer's type."""
        assert tokens.dtype == self._dtype
        while tokens.size:
            if self._file is None:
                self._file = (self._folder / shard_name(len(self.shards))).open("wb")
                self._file.write(pack_header(self._dtype, 0))
            some = tokens[:self._shard_tokens - self._written]
            data = np.ascontiguousarray(some).data
            self._file.write(data)
            self._shard.update(data)
            self._all.update(data)
            self._written += some.size
            tokens = tokens[some.size:]
            if self._written == self._shard_tokens:
                self._end_shard()

    def _end_shard(self) -> None:
        """Say in the header of the open shard, if there is one, how many tokens it has."""
        if self._file is None:
            return
        with self._file as file:
            file.seek(0)
            file.write(pack_header(self._dtype, self._written))
            file.flush()
            os.fsync(file.fileno())
        self.shards.append(
            Shard(shard_name(len(self.shards)), self._written, self._shard.hexdigest()))
        self._file, self._written, self._shard = None, 0, hashlib.sha256()
