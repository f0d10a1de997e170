"""``sterna convert``: a published checkpoint becomes a quantised model file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sterna.cli.terminal.console import Stages, out, print_json
from sterna.cli.terminal.options import JsonOption, QuietOption, check_file, choose
from sterna.cli.terminal.texts import text_of
from sterna.model.hub.convert import convert as run_conversion
from sterna.model.hub.convert import tokenizer_of
from sterna.model.hub.folder import HubFolder
from sterna.model.quantized.hgrn_bit import WIDTHS

__all__ = ["COMMANDS", "convert"]


def convert(
    folder: Annotated[Path, typer.Argument(
        metavar="FOLDER", help="Folder of a published checkpoint: config.json, weights as "
                               "safetensors or of torch.save, tokenizer.json.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write.")],
    profile: Annotated[str, typer.Option(
        help=f"Bits of each kind of value: {', '.join(WIDTHS)}.")] = "P24",
    calibrate: Annotated[Path | None, typer.Option(
        metavar="TEXT", help="UTF-8 text whose values choose the formats. Default: the held-out "
                             "text of the bundled models.")] = None,
    limit: Annotated[int, typer.Option(
        "--bytes", metavar="N", help="Use only the first N bytes of the text.")] = 16384,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Convert a published checkpoint to a quantised model file.

    It must be of the architecture hgrn_bit. Each matrix becomes ternary, and a text chooses the
    fixed-point formats, in which 1.5 times its largest values fit. Safetensors need no torch.

    Example: sterna convert MMfreeLM-370M -o 370m.safetensors
    """
    widths = WIDTHS[choose("--profile", profile, WIDTHS)]
    if limit < 2:
        raise ValueError(f"--bytes must be at least 2, got {limit}")
    check_file(output)
    source = HubFolder(folder)
    with Stages(quiet) as stage:
        stage("read the tokenizer", quick=True)
        tokenizer = tokenizer_of(source)
        text = text_of(calibrate, 256, limit, "--calibrate")
        stage("convert")
        model = run_conversion(
            source, text, tokenizer=tokenizer, widths=widths,
            progress=lambda done, total: stage.detail(f"{done}/{total} matrices"))
        stage("write", quick=True)
        model.save(output)
    size = output.stat().st_size
    if as_json:
        print_json({"output": str(output), "bytes": size, "sha256": model.sha256,
                    "profile": profile, "tokens": model.provenance["calibration_tokens"]})
    else:
        weights = sum(each.weight.size for each in model.projections.values())
        out.print(f"{output}: {size:,} bytes, {weights:,} ternary weights, {profile}")
    return 0


COMMANDS = (convert,)
