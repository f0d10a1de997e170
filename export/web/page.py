"""A model as a static web page: a folder that any web server can serve (docs/web.md)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from sterna.export.web.wasm import build_wasm
from sterna.model.folder import check_replaceable, write_folder
from sterna.model.quantized import QuantizedModel

__all__ = ["write_page"]


def write_page(model: QuantizedModel, folder: str | Path) -> Mapping[str, Any]:
    """Write the page of ``model``, a language model or a network over frames.

    Parameters
    ----------
    model
        The quantised model.
    folder
        Output folder. One written by Sterna is replaced, any other is refused.

    Returns
    -------
    Mapping
        The page's ``params.json``. The same model gives the same bytes.

    Raises
    ------
    ValueError
        If the model cannot be compiled (`NoCompilerError` if ``ziglang`` is missing) or the folder
        was not written by Sterna (`OutputFolderError`).
    OSError
        If the location cannot be written; nothing has changed then.
    """
    check_replaceable(Path(folder))
    wasm, facts = build_wasm(model)
    contents = {"model.wasm": wasm} | {
        source.name: source.read_bytes() for source in files("sterna.export.web.sources").iterdir()
        if source.name.endswith((".css", ".html", ".js", ".svg", ".webmanifest"))}
    digests = {name: hashlib.sha256(content).hexdigest()
               for name, content in sorted(contents.items()) if name != "service.js"}
    contents["service.js"] = contents["service.js"].replace(
        b"@FILES@", json.dumps(digests, indent=2).encode())
    return write_folder(Path(folder), contents, {"kind": "web", **facts})
