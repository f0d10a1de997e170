"""``sterna build-ops``: compile the custom operators for onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sterna.cli.terminal.console import out, print_json, progress_bar
from sterna.cli.terminal.options import JsonOption, QuietOption, check_folder

__all__ = ["COMMANDS", "build_ops"]


def build_ops(
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", metavar="DIR",
        help="Folder of the library. Default: a folder in your cache.")] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Compile the fast operators for onnxruntime.

    They are optional, and need g++.

    Example: sterna build-ops
    """
    from sterna.export.native.ops import build_ops as build
    from sterna.export.native.ops import kernel_name
    if output is not None:
        check_folder(output)
    display, move = progress_bar("compiling the operators", quiet)
    with display:
        library = build(output, progress=move)
    kernel = kernel_name(library)
    if as_json:
        print_json({"library": str(library), "kernel": kernel})
    else:
        out.print(f"{library}\nkernel: {kernel}")
    return 0


COMMANDS = (build_ops,)
