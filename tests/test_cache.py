"""What is kept by content: whole or not at all, up to a size, where the user wants it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.model.cache import Cache, cache_folder, cache_key, user_cache


@given(result=st.binary(max_size=300), key=st.text(min_size=1))
def test_a_cache_gives_back_what_was_put(tmp_path_factory, result, key):
    cache = Cache(tmp_path_factory.mktemp("cache"))
    digest = cache_key(key=key)
    assert cache.get(digest) is None
    cache.put(digest, result)
    assert cache.get(digest) == result
    assert Cache(cache.folder).get(digest) == result
    assert cache.get(cache_key(key=key + "x")) is None


@pytest.mark.parametrize("damage", [
    lambda data: b"", lambda data: data[:20], lambda data: data[:-1],
    lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: bytes(len(data))])
def test_a_damaged_entry_counts_as_missing(tmp_path, damage):
    cache, key = Cache(tmp_path / "cache"), cache_key(seed=1)
    cache.put(key, b"netlist" * 100)
    (file,) = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    file.write_bytes(damage(file.read_bytes()))
    assert cache.get(key) is None
    cache.put(key, b"again")
    assert cache.get(key) == b"again"


def test_past_its_limit_it_forgets_what_was_not_used_for_longest(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit_bytes=3500)       # three of these, which zlib makes no smaller
    keys = [cache_key(number=number) for number in range(4)]
    for at, key in enumerate(keys[:3]):
        cache.put(key, os.urandom(1000))
        file, = tmp_path.glob(f"??/{key}.z")
        os.utime(file, (at, at))
    assert cache.get(keys[0]) is not None       # so the second is the oldest now
    cache.put(keys[3], os.urandom(1000))
    assert [cache.get(key) is not None for key in keys] == [True, False, True, True]


def test_a_cache_that_may_only_be_read_gives_what_it_has(tmp_path, monkeypatch):
    cache, key = Cache(tmp_path), cache_key(seed=1)
    cache.put(key, b"netlist")

    def refused(path: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "utime", refused)
    assert cache.get(key) == b"netlist"


def test_a_cache_that_cannot_be_written_or_has_no_folder_stops_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    for cache in (Cache(tmp_path / "file"), Cache(None)):
        cache.put(cache_key(seed=1), b"netlist")
        assert cache.get(cache_key(seed=1)) is None
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_cache_is_where_it_is_said_to_be(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("STERNA_CACHE", raising=False)
    assert cache_folder() == tmp_path / "sterna"
    assert user_cache("part").folder == tmp_path / "sterna" / "part"
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "here"))
    assert cache_folder() == tmp_path / "here"
    monkeypatch.delenv("STERNA_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    # As where there is no home folder.
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(ValueError, match=r"no home folder .* set STERNA_CACHE"):
        cache_folder()
    assert user_cache("part").folder is None


def test_with_0_nothing_is_kept(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from sterna.model.cache import cache_folder, user_cache\n"
         "print(user_cache('part').folder, cache_folder().is_dir(), cache_folder())"],
        env={**os.environ, "STERNA_CACHE": "0", "TMPDIR": str(tmp_path)}, check=True,
        capture_output=True, text=True)
    assert done.stdout.startswith(f"None True {tmp_path}")
    assert list(tmp_path.iterdir()) == []
