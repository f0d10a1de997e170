"""Write a folder atomically: afterwards it is entirely new, or unchanged."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sterna.model.files import check_writable

__all__ = ["MANIFEST", "OutputFolderError", "check_replaceable", "new_folder", "write_folder"]

MANIFEST = "params.json"
_GENERATOR = "sterna"


class OutputFolderError(ValueError):
    """The output folder holds something that Sterna must not replace."""


def write_folder(
    folder: Path, files: Mapping[str, str | bytes], manifest: Mapping[str, Any],
) -> dict[str, Any]:
    """Write ``files`` (text as UTF-8) and their manifest as ``folder``, creating its parents.

    A name may be a path, such as ``src/model.h``.

    The files go to a temporary folder beside it, which is then renamed. ``params.json`` holds
    ``manifest`` and the checksums of the files; its content is returned. Files listed under
    ``made`` of the manifest are outputs of the folder's Makefile, files or folders; they may exist
    later and are replaced with the folder.

    Raises OutputFolderError if ``folder`` is a file or holds files not from an earlier call;
    OSError if the location is read-only or full. In both cases nothing has changed.
    """
    folder = Path(folder)
    check_replaceable(folder)
    contents = {
        name: content.encode() if isinstance(content, str) else content
        for name, content in files.items()}
    complete = {
        "generator": _GENERATOR,
        "format": 1,
        **manifest,
        "files": {
            name: hashlib.sha256(content).hexdigest()
            for name, content in sorted(contents.items())},
    }
    text = json.dumps(complete, indent=2) + "\n"
    try:
        with new_folder(folder) as new:
            for name, content in {**contents, MANIFEST: text.encode()}.items():
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                (new / name).write_bytes(content)
    except OSError as error:
        # Name the target folder, not the temporary one.
        reason = f"cannot write ({error.strerror or error})"
        raise OSError(error.errno, reason, str(folder)) from error
    written: dict[str, Any] = json.loads(text)
    return written


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Give an empty folder beside ``folder`` that replaces it at the end of the block; if the block
    raises, ``folder`` is unchanged and the new folder is removed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        new, old = temporary / "new", temporary / "old"
        new.mkdir()
        yield new
        try:
            if folder.exists():
                os.rename(folder, old)
            os.rename(new, folder)
        except BaseException:
            if old.exists():
                os.rename(old, folder)
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_replaceable(folder: Path) -> None:
    """Refuse a folder that :func:`write_folder` would refuse, for use before long work."""
    check_writable(folder)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise OutputFolderError(f"{folder} is a file; give the name of a folder to write")
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*")
               if not path.is_dir()}
    if not any(folder.iterdir()):
        return
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        ours = manifest["generator"] == _GENERATOR
        known, made = {MANIFEST, *manifest["files"]}, manifest.get("made", ())
    except (OSError, ValueError, KeyError, TypeError):
        ours, known, made = False, set(), ()
    foreign = sorted(name for name in present - known if name.split("/")[0] not in made)
    if not ours or foreign:
        raise OutputFolderError(
            f"{folder} holds files that Sterna did not write ({(foreign or [MANIFEST])[0]}); "
            f"give a new folder, or empty this one")
