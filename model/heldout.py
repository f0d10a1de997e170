"""The held-out text of the bundled models.

It is shipped, so that their figures can be reproduced with any Python: the manual that
``pydoc_data.topics`` holds differs from version to version.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["bundled_heldout", "read_text"]


def bundled_heldout() -> bytes:
    """Return the text no bundled model was trained on, as UTF-8 bytes."""
    return (Path(__file__).parent / "data" / "heldout.txt").read_bytes()


def read_text(path: str | Path, *, at_least: int = 2) -> bytes:
    """Read a UTF-8 text file, as bytes.

    Raises
    ------
    ValueError
        If it cannot be read, has fewer than ``at_least`` bytes or is not UTF-8.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot read the text ({error.strerror or error})") from error
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: not UTF-8 text (byte 0x{data[error.start]:02x} at offset "
            f"{error.start})") from error
    if len(data) < at_least:
        raise ValueError(
            f"{path}: the text must have at least {at_least} bytes, got {len(data)}")
    return data
