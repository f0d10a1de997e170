"""A cache of the results of slow tools, keyed by the content of their inputs."""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import shutil
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from sterna.model.files import write_atomically

__all__ = ["Cache", "cache_folder", "cache_key", "user_cache"]


def cache_key(**inputs: Any) -> str:
    """The SHA-256 of all inputs that the result depends on, as plain data in any order."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


class Cache:
    """Results in a folder, one file each, by key.

    A file begins with the SHA-256 of the rest, so a damaged or truncated one counts as missing.
    Files are written under a temporary name and renamed, so several processes may share a folder.
    A folder that cannot be read or written caches nothing, without an error, nor does None. Past
    ``limit_bytes``, the least recently used results are removed.
    """

    def __init__(self, folder: str | Path | None, limit_bytes: int = 2_000_000_000) -> None:
        self.folder = None if folder is None else Path(folder)
        self.limit_bytes = limit_bytes

    def get(self, key: str) -> bytes | None:
        """Return the result with a key; None if it is missing or damaged."""
        if self.folder is None:
            return None
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        with suppress(OSError):     # from a read-only cache
            os.utime(path)
        digest, packed = data[:32], data[32:]
        if hashlib.sha256(packed).digest() != digest:
            return None
        return zlib.decompress(packed)

    def put(self, key: str, result: bytes) -> None:
        """Store a result, if the folder can be written."""
        if self.folder is None:
            return
        path = self._path(key)
        packed = zlib.compress(result, 3)
        # A cache that fails must not cost the caller a result that took minutes.
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, hashlib.sha256(packed).digest() + packed)
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        assert self.folder is not None
        found = [(path, path.stat()) for path in self.folder.glob("??/*.z")]
        excess = sum(stat.st_size for _, stat in found) - self.limit_bytes
        for path, stat in sorted(found, key=lambda each: each[1].st_mtime_ns):
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            excess -= stat.st_size

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / key[:2] / f"{key}.z"


def cache_folder() -> Path:
    """The folder of all caches: ``$STERNA_CACHE``, else ``$XDG_CACHE_HOME/sterna``, else
    ``~/.cache/sterna``.

    ``STERNA_CACHE=0`` keeps nothing: the folder is private to this process and removed at its end.
    Raises ValueError if neither is set and the user has no home.
    """
    named, base = os.environ.get("STERNA_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if named == "0":
        return _folder_of_process()
    if named:
        return Path(named)
    try:
        return (Path(base) if base else Path.home() / ".cache") / "sterna"
    except RuntimeError as error:
        raise ValueError(
            "there is no home folder to keep a cache in: set STERNA_CACHE to a folder") from error


@functools.cache
def _folder_of_process() -> Path:
    folder = tempfile.mkdtemp(prefix="sterna-cache-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def user_cache(part: str) -> Cache:
    """The cache of one kind of result, in a folder of that name in :func:`cache_folder`."""
    if os.environ.get("STERNA_CACHE") == "0":
        return Cache(None)
    try:
        return Cache(cache_folder() / part)
    except ValueError:
        return Cache(None)
