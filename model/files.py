"""Read texts with clear errors, and write files atomically."""

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
    """Raise ValueError if an argument is not a path."""
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"{name} must name a file or folder, got {path!r}")


def check_unpublished(path: str | Path, error: type[ValueError] = ValueError) -> None:
    """Raise ``error`` for the folder of a published checkpoint where a Sterna model or run is
    expected."""
    if (Path(path) / "config.json").is_file():
        raise error(f"{path} is a published checkpoint: make a model file of it first, with "
                    f"sterna convert {path} -o FILE")


def check_writable(path: Path) -> None:
    """Raise OSError if a file or folder of this name could not be written, for use before long
    work; tries the nearest existing folder."""
    place = next(each for each in path.absolute().parents if each.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        reason = f"cannot write ({error.strerror or error})"
        raise OSError(error.errno, reason, str(path)) from error


def write_atomically(path: Path, data: bytes | str) -> Path:
    """Write ``data`` to a temporary file beside ``path``, then rename it to ``path``.

    Raises OSError if the folder is missing, read-only or full; ``path`` is then unchanged.
    """
    path = Path(path)
    raw = data.encode() if isinstance(data, str) else data
    try:
        _write(path, raw)
    except OSError as error:
        # Name the target file, not the temporary one.
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
    """Read a UTF-8 text file as bytes without a byte-order mark; ValueError if it cannot be read
    or has fewer than ``at_least`` bytes."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot read the text ({error.strerror or error})") from error
    for _ in utf8_blocks(path, (data[start:start + _PIECE_BYTES]
                                for start in range(0, len(data), _PIECE_BYTES))):
        pass    # decoding a large text whole would take up to four times its size
    data = data.removeprefix(codecs.BOM_UTF8)
    if len(data) < at_least:
        raise ValueError(
            f"{path}: the text must have at least {at_least} bytes, got {len(data)}")
    return data


def utf8_blocks(name: object, blocks: Iterable[bytes], start: int = 0) -> Iterator[bytes]:
    """Pass on the blocks of the UTF-8 text ``name``, from offset ``start`` on, checking each.

    Raises ValueError at a byte that is not UTF-8; blocks may end inside a character.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    for block in itertools.chain(blocks, [b""]):
        begun = len(decoder.getstate()[0])      # bytes of an incomplete character in the last block
        try:
            decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}: not UTF-8 text (byte 0x{error.object[error.start]:02x} at offset "
                f"{start - begun + error.start})") from error
        start += len(block)
        if block:
            yield block
