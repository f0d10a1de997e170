"""``sterna web``: a model as a static web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sterna.cli.terminal.console import out, print_json, say
from sterna.model.quantized import load_model

__all__ = ["COMMANDS", "web"]


def web(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Quantised file, or tiny.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    check: Annotated[int, typer.Option(
        help="Tokens of the integer reference to record; the page compares itself with them.",
        )] = 64,
    ort: Annotated[Path | None, typer.Option(
        help="Folder of the unpacked npm package onnxruntime-web; default: the cache, or else "
             "npm.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what params.json says.")] = False,
) -> int:
    """Write a web page in which the model writes text, for any static web server.

    Example: sterna web tiny -o build/page
    """
    from sterna.export.web.page import write_page
    say(f"writing {output}", quiet)
    page = write_page(load_model(model), output, check_tokens=check, runtime=ort)
    if as_json:
        print_json(dict(page.manifest))
        return 0
    for path in sorted(page.folder.iterdir()):
        out.print(f"{path}: {path.stat().st_size:,} bytes")
    say(f"to see it: python -m http.server 8000 -d {output}, then open http://localhost:8000",
        quiet)
    return 0


COMMANDS = (web,)
