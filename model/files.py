"""Writing files so that nothing half-written is ever left behind."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: Path, data: bytes | str) -> Path:
    """Write ``data`` to a temporary file beside ``path``, then rename it to ``path``.

    Raises
    ------
    OSError
        If the folder is missing, read-only or full; ``path`` is then as it was before.
    """
    path = Path(path)
    raw = data.encode() if isinstance(data, str) else data
    try:
        _write(path, raw)
    except OSError as error:
        # Name the file that was wanted, not the temporary one.
        raise OSError(error.errno, f"cannot write ({error.strerror})", str(path)) from error
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
