"""A cache of what slow tools give, found by the content of what they were given."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from sterna.model.files import write_atomically

__all__ = ["Cache", "cache_key", "default_cache"]


def cache_key(**inputs: Any) -> str:
    """Return the SHA-256 of inputs: everything that the result depends on, as plain data.

    >>> cache_key(text="a", seed=1) == cache_key(seed=1, text="a") != cache_key(seed=2, text="a")
    True
    """
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


class Cache:
    """Results in a folder, one file each, by key.

    A file begins with the SHA-256 of the rest, so one that was damaged or cut short counts as
    missing. Files are written beside their place and renamed, so several processes may share
    a folder. Nothing is ever removed: delete the folder to be rid of it. A folder that cannot
    be read or written saves nothing, and stops nothing.

    Parameters
    ----------
    folder
        Where the files are; made when the first is written. None keeps nothing.
    """

    def __init__(self, folder: str | Path | None) -> None:
        self.folder = None if folder is None else Path(folder)

    def get(self, key: str) -> bytes | None:
        """Return the result with a key; None if there is none, or it is damaged."""
        if self.folder is None:
            return None
        try:
            data = self._path(key).read_bytes()
        except OSError:
            return None
        digest, packed = data[:32], data[32:]
        if hashlib.sha256(packed).digest() != digest:
            return None
        return zlib.decompress(packed)

    def put(self, key: str, result: bytes) -> None:
        """Keep a result, if the folder can be written."""
        if self.folder is None:
            return
        path = self._path(key)
        packed = zlib.compress(result, 3)
        # The minutes that made the result are not to be lost with it.
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, hashlib.sha256(packed).digest() + packed)

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / key[:2] / f"{key}.z"


def default_cache() -> Cache:
    """The cache in the folder that ``STERNA_CACHE`` names, or else ``build/synth-cache``."""
    return Cache(os.environ.get("STERNA_CACHE") or Path("build") / "synth-cache")
