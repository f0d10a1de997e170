"""onnxruntime for browsers: the files of its npm package that a page needs, found and checked.

Two files of the package are enough for one thread on the CPU: a JavaScript module and the
WebAssembly it drives. Both are pinned by SHA-256, so it does not matter where they come from.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from sterna.model.cache import cache_folder
from sterna.model.files import write_atomically

__all__ = [
    "WEB_RUNTIME", "WEB_RUNTIME_VERSION", "WebRuntimeError", "runtime_cache", "runtime_files",
]

WEB_RUNTIME_VERSION = "1.30.0"
"""Version of the npm package onnxruntime-web that the page was tested with."""

WEB_RUNTIME = {
    "ort.wasm.bundle.min.mjs":
        "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    "ort-wasm-simd-threaded.wasm":
        "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
"""SHA-256 of the files that are taken from the package's folder ``dist``."""

_PACKAGE = f"onnxruntime-web@{WEB_RUNTIME_VERSION}"
_NPM_SECONDS = 600


class WebRuntimeError(ValueError):
    """onnxruntime-web cannot be had, or is not the version that was asked for."""


def runtime_cache() -> Path:
    """The folder that keeps the files: in ``STERNA_CACHE``, or else in the user's cache.

    >>> runtime_cache().name == f"onnxruntime-web-{WEB_RUNTIME_VERSION}"
    True
    """
    return cache_folder() / f"onnxruntime-web-{WEB_RUNTIME_VERSION}"


def runtime_files(folder: Path | None = None) -> dict[str, bytes]:
    """Return the files of :data:`WEB_RUNTIME`, checked.

    Without a folder they come from the cache, or else from npm, which is asked once and
    runs no script of the package.

    Parameters
    ----------
    folder
        The unpacked package, or its ``dist`` folder; nothing is fetched then.

    Raises
    ------
    WebRuntimeError
        If npm is missing or fails, or a file is missing or is of another version.
    OSError
        If the cache cannot be written.
    """
    if folder is not None:
        return _read_all(folder / "dist" if (folder / "dist").is_dir() else folder)
    cache = runtime_cache()
    try:
        return _read_all(cache)
    except WebRuntimeError:
        files = _from_npm()
    cache.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        write_atomically(cache / name, data)
    return files


def _read_all(folder: Path) -> dict[str, bytes]:
    files = {}
    for name in WEB_RUNTIME:
        try:
            data = (folder / name).read_bytes()
        except OSError as error:
            raise WebRuntimeError(
                f"{folder / name}: cannot read ({error.strerror or error}); expected the "
                f"unpacked npm package {_PACKAGE}, or its folder dist") from error
        files[name] = _checked(name, data, str(folder / name))
    return files


def _checked(name: str, data: bytes, place: str) -> bytes:
    found = hashlib.sha256(data).hexdigest()
    if found != WEB_RUNTIME[name]:
        raise WebRuntimeError(
            f"{place}: not the file of {_PACKAGE}: expected SHA-256 {WEB_RUNTIME[name]}, "
            f"got {found}")
    return data


def _from_npm() -> dict[str, bytes]:
    npm = shutil.which("npm")
    if npm is None:
        raise WebRuntimeError(
            f"the page needs the npm package {_PACKAGE}, and npm is not installed: install "
            f"npm (Debian and Ubuntu: apt-get install npm), or unpack the package yourself "
            f"and name its folder with --ort")
    with tempfile.TemporaryDirectory(prefix="sterna-npm-") as temporary:
        _npm_pack(npm, temporary)
        archives = sorted(Path(temporary).glob("*.tgz"))
        if len(archives) != 1:
            raise WebRuntimeError(f"npm pack {_PACKAGE} wrote {len(archives)} archives, not one")
        try:
            with tarfile.open(archives[0]) as archive:
                return {name: _checked(name, _member(archive, name), f"npm's {name}")
                        for name in WEB_RUNTIME}
        except tarfile.TarError as error:
            raise WebRuntimeError(f"npm's archive of {_PACKAGE} is damaged ({error})") from error


def _npm_pack(npm: str, folder: str) -> None:
    command = [npm, "pack", _PACKAGE, "--pack-destination", folder, "--ignore-scripts"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_NPM_SECONDS,
            check=False)
    except subprocess.TimeoutExpired as error:
        raise WebRuntimeError(
            f"npm pack {_PACKAGE} took longer than {_NPM_SECONDS} s") from error
    if done.returncode:
        reason = " ".join(line for line in done.stderr.splitlines()
                          if "error" in line.lower())[:300]
        raise WebRuntimeError(
            f"npm pack {_PACKAGE} failed ({reason or f'exit code {done.returncode}'}); without "
            f"a network, name the folder of the unpacked package with --ort")


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    try:
        member = archive.extractfile(f"package/dist/{name}")
    except KeyError:
        member = None
    if member is None:
        raise WebRuntimeError(f"npm's archive of {_PACKAGE} has no dist/{name}")
    return member.read()
