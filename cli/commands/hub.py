"""``sterna convert`` and ``push-folder``: import and export of published checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sterna.cli.terminal.console import Stages, out, print_json, say
from sterna.cli.terminal.options import JsonOption, QuietOption, check_file, check_folder, choose
from sterna.cli.terminal.texts import text_of
from sterna.model.folder import check_replaceable, write_folder
from sterna.model.hub.convert import convert as run_conversion
from sterna.model.hub.convert import tokenizer_of
from sterna.model.hub.folder import HubFolder
from sterna.model.quantized.hgrn_bit import WIDTHS
from sterna.model.tokens.tokenizer import NUMBERS

__all__ = ["COMMANDS", "convert", "push_folder"]


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
        tokenizer = tokenizer_of(source, say)
        text = None
        if calibrate is not None or tokenizer.kind != NUMBERS.kind:
            text = text_of(calibrate, tokenizer, limit, "--calibrate")
        else:
            say("calibrated with random tokens: better, --calibrate a file with numbers of tokens")
        stage("convert")
        model = run_conversion(
            source, text, tokenizer=tokenizer, widths=widths,
            progress=lambda done, total: stage.detail(f"{done}/{total} matrices"))
        stage("write", quick=True)
        output.parent.mkdir(parents=True, exist_ok=True)
        model.save(output)
    size = output.stat().st_size
    if as_json:
        print_json({"output": str(output), "bytes": size, "sha256": model.sha256,
                    "profile": profile, "tokens": model.provenance["calibration_tokens"]})
    else:
        weights = sum(each.weight.size for each in model.projections.values())
        out.print(f"{output}: {size:,} bytes, {weights:,} ternary weights, {profile}")
    return 0


def push_folder(
    checkpoint: Annotated[Path, typer.Argument(
        metavar="CHECKPOINT", help="A checkpoint.pt of the mixer hgrn_bit from sterna train, or "
                                   "its folder.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    quiet: QuietOption = False,
) -> int:
    """Write a trained model as a folder for a model hub.

    The layout is that of the published checkpoints: config.json, model.safetensors in float32,
    tokenizer.json, generation_config.json, and a card with what is known of the training. The
    model's mixer must be hgrn_bit.

    Example: sterna push-folder runs/hgrn -o hub/hgrn
    """
    check_folder(output)
    check_replaceable(output)
    with Stages(quiet) as stage:
        stage("load torch", quick=True)
        from sterna.model.torch.stack.published import published_files
        from sterna.model.torch.training.checkpoint import load_checkpoint
        stage("write the folder")
        trained = load_checkpoint(checkpoint)
        facts = {"tokenizer": trained.tokenizer.kind, "text": trained.corpus_name,
                 "steps": trained.step, "seed": trained.seed}
        if trained.heldout_bpb is not None:
            facts["held-out bits per byte, float"] = f"{trained.heldout_bpb:.4f}"
        manifest = write_folder(output, published_files(
            trained.model(), trained.tokenizer, facts), {})
    out.print(f"{output}: {', '.join(manifest['files'])}")
    return 0


COMMANDS = (convert, push_folder)
