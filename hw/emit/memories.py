"""Files of contents of memories: a Verilog file names them, and they lie beside it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

__all__ = ["copy_memories", "files_of"]

_READ = re.compile(r'\$readmemh\("([^"]+)"')


def files_of(verilog: Path) -> dict[str, str]:
    """Read a Verilog file and the files of contents that it names, which lie beside it."""
    text = verilog.read_text(encoding="utf-8")
    return {verilog.name: text, **{
        name: (verilog.parent / name).read_text(encoding="utf-8")
        for name in _READ.findall(text)}}


def copy_memories(verilog: Path, folder: Path) -> None:
    """Copy the contents of a Verilog file's memories to where a tool will look for them."""
    for name in set(_READ.findall(verilog.read_text(encoding="utf-8"))):
        shutil.copyfile(verilog.parent / name, folder / name)
