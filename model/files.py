"""Reading texts with clear errors, and writing files so that nothing is left half-written."""

from __future__ import annotations

import codecs
import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = [
    "check_path", "check_unpublished", "check_writable", "read_text", "utf8_blocks",
    "write_atomically"]

_PIECE_BYTES = 1 << 20


def check_path(name: str, path: object) -> None:
    """Raise ValueError if an argument is no path."""
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"{name} must name a file or folder, got {path!r}")


def check_unpublished(path: str | Path, error: type[ValueError] = ValueError) -> None:
    """Raise ``error`` for the folder of a published checkpoint, where a model or a run of ours is
    wanted."""
    if (Path(path) / "config.json").is_file():
        raise error(f"{path} is a published checkpoint: make a model file of it first, with "
                    f"sterna convert {path} -o FILE")


def check_writable(path: Path) -> None:
    """Raise OSError if a file or folder of this name could not be written: the nearest folder that
    exists is tried, before long work."""
    place = next(each for each in path.absolute().parents if each.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        reason = f"cannot write ({error.strerror or error})"
        raise OSError(error.errno, reason, str(path)) from error


def write_atomically(path: Path, data: bytes | str) -> Path:
    """Write ``data`` to a temporary file beside ``path``, then rename it to ``path``.

    Raises OSError if the folder is missing, read-only or full; ``path`` is then as it was before.
    """
    path = Path(path)
    raw = data.encode() if isinstance(data, str) else data
    try:
        _write(path, raw)
    except OSError as error:
        # Name the file that was wanted, not the temporary one.
        reason = f"cannot write ({error.strerror or error})"
        raise OSError(error.errno, reason, str(path)) from error
    return path


def _write(path: Path, raw: bytes) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_text(path: str | Path, *, at_least: int = 2) -> bytes:
    """Read a UTF-8 text file, as bytes without a byte-order mark; ValueError if it cannot be, or
    has fewer than ``at_least``."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot read the text ({error.strerror or error})") from error
    for _ in utf8_blocks(path, (data[start:start + _PIECE_BYTES]
                                for start in range(0, len(data), _PIECE_BYTES))):
        pass    # at once a large text would take up to four times its size
    data = data.removeprefix(codecs.BOM_UTF8)
    if len(data) < at_least:
        raise ValueError(
            f"{path}: the text must have at least {at_least} bytes, got {len(data)}")
    return data


def utf8_blocks(name: object, blocks: Iterable[bytes], start: int = 0) -> Iterator[bytes]:
    """The blocks of a UTF-8 text that is called so, from offset ``start`` on, as they come.

    Raises ValueError at a byte that is not UTF-8, wherever blocks end.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    for block in itertools.chain(blocks, [b""]):
        begun = len(decoder.getstate()[0])      # bytes of a character that the last block began
        try:
            decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}: not UTF-8 text (byte 0x{error.object[error.start]:02x} at offset "
                f"{start - begun + error.start})") from error
        start += len(block)
        if block:
            yield block
