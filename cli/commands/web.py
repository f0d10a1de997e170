"""``sterna web``: a model as a static web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sterna.cli.terminal.console import Stages, out, print_json, say
from sterna.cli.terminal.options import ModelArgument, QuietOption, check_folder
from sterna.model.quantized import load_model

__all__ = ["COMMANDS", "web"]


def web(
    model: ModelArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    check: Annotated[int, typer.Option(
        help="How many tokens of the integer reference to record, for the page to compare "
             "its own with.")] = 64,
    ort: Annotated[Path | None, typer.Option(
        help="Folder of the unpacked npm package onnxruntime-web. Default: taken from the "
             "cache, or else fetched with npm.")] = None,
    quiet: QuietOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the page's params.json.")] = False,
) -> int:
    """Write a web page in which the model writes text.

    It is a folder of files for any static web server, and needs no network.

    Example: sterna web tiny -o build/page
    """
    from sterna.export.web.page import write_page
    check_folder(output)
    with Stages(quiet) as stage:
        stage(f"write {output}", quick=True)
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
