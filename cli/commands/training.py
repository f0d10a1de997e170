"""``sterna train`` and ``sterna quantize``: from a text to a checkpoint, and to integers."""

from __future__ import annotations

import math
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sterna.cli.terminal.console import Stages, out, print_json, say
from sterna.cli.terminal.options import (
    JsonOption,
    QuietOption,
    check_file,
    check_folder,
    choose,
    how_to_resume,
)
from sterna.cli.terminal.train_texts import corpus_of, in_tokens, said
from sterna.model.checks import check_whole
from sterna.model.config import NAMED_CONFIGS, NORMS, RESIDUALS, WEIGHTS, ModelConfig
from sterna.model.files import read_text
from sterna.model.processes import is_first_process
from sterna.model.profile import PROFILES
from sterna.model.shards.text import ShardText
from sterna.model.tokens.files import fitted, load_tokenizer
from sterna.model.tokens.tokenizer import BYTES
from sterna.model.training.recipe import Execution, TrainRecipe
from sterna.model.training.run_folder import RunFolder

if TYPE_CHECKING:
    from sterna.model.training.train import TrainResult

__all__ = ["COMMANDS", "quantize", "report_run", "train"]


def train(
    config: Annotated[str, typer.Option(help="Size: micro (ASCII), nano, tiny or small.")] = "tiny",
    d: Annotated[int | None, typer.Option(help="Width of the residual stream.")] = None,
    layers: Annotated[int | None, typer.Option(help="Number of blocks.")] = None,
    dff: Annotated[int | None, typer.Option(help="Width of the GLU.")] = None,
    mixer: Annotated[str, typer.Option(
        metavar="PATTERN",
        help="Token mixers of the layers, such as '3*mlgru + window(size=64)', or FILE.py:CLASS; "
             "sterna mixers --list names them.")] = "mlgru",
    channel: Annotated[str, typer.Option(
        metavar="PATTERN", help="Channel mixers, the same way.")] = "glu",
    norm: Annotated[str, typer.Option(
        help="Norm before a mixer or after it: pre or post.")] = "pre",
    weights: Annotated[str, typer.Option(
        help="Weights of the projections: ternary or float.")] = "ternary",
    residual: Annotated[str, typer.Option(
        help="How blocks are joined: plain, or reversible, which keeps the activations of one "
             "block whatever the number of layers and computes each block twice.")] = "plain",
    text: Annotated[Path | None, typer.Option(
        help="UTF-8 text to train on; its last tenth is held out. Default: the manual of this "
             "Python.")
    ] = None,
    docstrings: Annotated[bool, typer.Option(
        "--docstrings", help="Add the standard library's docstrings to the manual.")] = False,
    general_text: Annotated[Path | None, typer.Option(
        metavar="FILE",
        help="UTF-8 text of a more general kind to begin with, of which less and less is read. "
             "Default: with the manual, the standard library's docstrings.")] = None,
    general_share: Annotated[float | None, typer.Option(
        metavar="SHARE",
        help="Share of the general text in the beginning; 0 leaves it out. Default: 0.8.")] = None,
    data: Annotated[Path | None, typer.Option(
        metavar="FOLDER",
        help="Train on what sterna data build wrote; the vocabulary is that of its tokenizer.",
    )] = None,
    tokenizer: Annotated[Path | None, typer.Option(
        metavar="FILE",
        help="Tokens that sterna tokenizer train made; they give the vocabulary. Default: bytes.",
    )] = None,
    steps: Annotated[int | None, typer.Option(help="Budget in optimiser steps.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Budget in minutes.")] = None,
    output: Annotated[Path | None, typer.Option(
        "-o", "--output",
        help="Folder for checkpoint, metrics and plot. Default: runs/CONFIG.")
    ] = None,
    resume: Annotated[bool, typer.Option(
        "--resume", help="Go on from the checkpoint in the output folder.")] = False,
    auto_resume: Annotated[bool, typer.Option(
        "--auto-resume", help="The same if there is a checkpoint, else start.")] = False,
    overwrite: Annotated[bool, typer.Option(
        "--overwrite", help="Replace the checkpoint in the output folder.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of weights and data order.")] = 0,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    lr_width: Annotated[int | None, typer.Option(
        help="Width of the model that the learning rate is for; it is multiplied by this width "
             "over that of the model, which keeps the best rate nearly the best.")] = None,
    warmup: Annotated[int | None, typer.Option(
        help="Steps in which the learning rate rises to its peak. Default: 50.")] = None,
    batch: Annotated[int | None, typer.Option(help="Windows per step.")] = None,
    window: Annotated[int | None, typer.Option(help="Tokens per window.")] = None,
    accumulate: Annotated[int | None, typer.Option(
        metavar="N", help="Read the windows of a step in N parts, in less memory.")] = None,
    carry_state: Annotated[bool | None, typer.Option(
        "--carry-state/--no-carry-state",
        help="Whether a window goes on with the state that the one before it left.")] = None,
    reset_at_documents: Annotated[bool, typer.Option(
        "--reset-at-documents", help="Start from the zero state at every end-of-text token.",
    )] = False,
    order: Annotated[str | None, typer.Option(
        help="Windows that start afresh: random, or epoch, which reads each once before any is "
             "read again.")] = None,
    eval_window: Annotated[int | None, typer.Option(
        help="Measure held-out text in windows of so many tokens. Default: the state is carried "
             "through it, if it does not grow.")] = None,
    heldout_bytes: Annotated[int | None, typer.Option(
        help="Measure so much of the held-out text, from its beginning. Default: 65536.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay of AdamW.")] = None,
    checkpoint_activations: Annotated[bool, typer.Option(
        "--checkpoint-activations", help="Keep the inputs of blocks alone and compute blocks "
                                         "again in the backward pass: less memory, the same "
                                         "weights.")] = False,
    compile_blocks: Annotated[bool, typer.Option(
        "--compile", help="Let torch.compile compile the blocks, at the first step, in place of "
                          "this package's kernels.")] = False,
    parallel: Annotated[str | None, typer.Option(
        help="Under torchrun: ddp, every process has the model, or fsdp, every process has a part "
             "of each weight. Default: ddp.")] = None,
    checkpoint_steps: Annotated[int | None, typer.Option(
        metavar="N", help="Write a checkpoint every N steps, too.",
    )] = None,
    checkpoint_seconds: Annotated[float, typer.Option(
        metavar="S", help="Write a checkpoint every S seconds.")] = 60.0,
    eval_every: Annotated[int | None, typer.Option(
        metavar="STEPS", help="Measure the held-out text every so many steps, and at the end. "
                              "Default: eight times.")] = None,
    schedule: Annotated[str | None, typer.Option(
        help="How the learning rate falls: cosine, or two-stage, whose second half begins lower "
             "and goes without weight decay.")] = None,
    float_start: Annotated[float | None, typer.Option(
        metavar="SHARE", help="Compute this first share of the budget in full precision.")] = None,
    ema: Annotated[float | None, typer.Option(
        metavar="DECAY", help="Measure and keep an average of the weights, such as 0.999.")] = None,
    profile: Annotated[str, typer.Option(
        help="Numeric profile to train for: S16, whose limits hold, or C12, to whose formats "
             "values are also rounded.")] = "S16",
    sample_every: Annotated[int | None, typer.Option(
        metavar="STEPS", help="Let the model write into samples.txt every so many steps.")] = None,
    tensorboard: Annotated[bool, typer.Option(
        "--tensorboard", help="Write figures for TensorBoard, too.")] = False,
    report: Annotated[bool, typer.Option(
        "--report/--no-report", help="Whether to write report.html at the end.")] = True,
    device: Annotated[str | None, typer.Option(
        help="torch device. Default: cuda if there is one, else cpu.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Train a float model with quantisation in the loop.

    Example: sterna train --config tiny --minutes 2 -o runs/tiny
    """
    quiet = quiet or not is_first_process()
    if (steps is None) == (minutes is None):
        raise ValueError("give the budget as --steps or as --minutes, but not both")
    if docstrings and (text is not None or data is not None):
        raise ValueError("--docstrings adds to the built-in text: leave it out with "
                         + ("--text" if data is None else "--data"))
    if text is not None and data is not None:
        raise ValueError("give the text as --text or as --data, but not both")
    if general_text is not None and (data is not None or docstrings):
        raise ValueError("--general-text goes with --text or the built-in text: leave it out with "
                         + ("--data" if docstrings is False else "--docstrings"))
    if tokenizer is not None and data is not None:
        raise ValueError("--tokenizer goes with a text: what sterna data build wrote has its own")
    shards = None if data is None else ShardText(data)
    tokens = load_tokenizer(tokenizer) if tokenizer else shards.tokenizer if shards else None
    named = ModelConfig.named(choose("--config", config, NAMED_CONFIGS))
    shape = ModelConfig(
        named.d if d is None else d, named.layers if layers is None else layers,
        named.dff if dff is None else dff,
        named.vocab if tokens is None else tokens.vocab, mixer, channel,
        choose("--norm", norm, NORMS), choose("--weights", weights, WEIGHTS),
        choose("--residual", residual, RESIDUALS))
    given = {name: value for name, value in {
        "lr": lr, "batch": batch, "window": window, "weight_decay": weight_decay,
        "warmup_steps": warmup, "accumulate": accumulate, "carry_state": carry_state,
        "order": order, "eval_window": eval_window, "schedule": schedule,
        "float_start": float_start, "ema": ema, "general_share": general_share,
        "reset_at_documents": reset_at_documents or None,
    }.items() if value is not None}
    recipe = TrainRecipe.of(weights, **given)
    if lr_width is not None:
        recipe = recipe.carried_over(lr_width, shape.d)
    numbers = PROFILES[choose("--profile", profile, PROFILES)]
    if heldout_bytes is not None:
        check_whole("--heldout-bytes", heldout_bytes, 2)
    output = Path("runs") / config if output is None else output
    check_folder(output)
    RunFolder(output).resumes(      # refused before the text is read
        resume=resume, auto_resume=auto_resume, overwrite=overwrite)
    with Stages(quiet) as stage:
        stage("load torch", quick=True)
        from sterna.model.training.distributed import joined
        from sterna.model.training.heldout import HELDOUT_BYTES
        from sterna.model.training.record import Recorded
        from sterna.model.training.train import train as run_training
        from sterna.model.training.train import training_device
    corpus = (said(shards, quiet) if shards is not None else
              in_tokens(corpus_of(text, docstrings, general_text, recipe),
                        tokens or fitted(BYTES, shape.vocab), quiet))
    with joined(lambda local_rank: training_device(device, local_rank)) as processes:
        result = run_training(
            shape, corpus, run_dir=output, steps=steps, minutes=minutes, seed=seed, recipe=recipe,
            resume=resume, auto_resume=auto_resume, overwrite=overwrite, device=device,
            threads=threads, quiet=quiet, checkpoint_steps=checkpoint_steps, profile=numbers,
            checkpoint_seconds=checkpoint_seconds, heldout_steps=eval_every,
            execution=Execution(parallel, checkpoint_activations, compile_blocks),
            recorded=Recorded(sample_every, tensorboard, _command()),
            heldout_bytes=HELDOUT_BYTES if heldout_bytes is None else heldout_bytes)
        is_first = processes.is_first
        if result.interrupted:      # a launcher ends all as soon as one has ended with another code
            processes.on_first(lambda: _finish(result, output, report, quiet, as_json))
            if is_first:
                say(how_to_resume(output, overwrite=overwrite, auto_resume=auto_resume))
    # A report may take longer than the others may wait in a group.
    if is_first and not result.interrupted:
        _finish(result, output, report, quiet, as_json)
    return 128 + (result.stop_signal or signal.SIGINT) if result.interrupted else 0


def _command() -> tuple[str, ...]:
    """The command line, if it is that of ``sterna train`` and not of a program that calls it."""
    return ("sterna", *sys.argv[1:]) if sys.argv[1:2] == ["train"] else ()


def _finish(
    result: TrainResult, output: Path, report: bool, quiet: bool, as_json: bool,
) -> None:
    """Write the report, which needs all of the model in one file, and say what came out."""
    if report and result.checkpoint.is_file():
        from sterna.cli.reports.run_page import write_run_report
        with Stages(quiet) as stage:
            stage("write the report", quick=True)
            write_run_report(RunFolder(output))
    _show(result, output, as_json)


def report_run(
    folder: Annotated[Path, typer.Argument(
        metavar="FOLDER", help="Folder of a run of sterna train, also one that goes on.")],
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", metavar="FILE.html",
        help="File to write. Default: report.html in the folder.")] = None,
    quiet: QuietOption = False,
) -> int:
    """Write a training run as one page.

    Loss, learning rate, codes that change or are zero, what ternary weights and integers cost by
    layer, samples of text, recipe, versions and command.

    Example: sterna report-run runs/tiny
    """
    if output is not None and output.suffix != ".html":
        raise ValueError(f"--output must end in .html, got {output}")
    if output is not None:
        check_file(output)
    if folder.is_file():
        raise ValueError(f"{folder} is a file: give the folder of a run, {folder.parent}")
    with Stages(quiet) as stage:
        stage("load torch", quick=True)
        from sterna.cli.reports.run_page import write_run_report
        stage("write the report")
        path = write_run_report(RunFolder(folder), output)
    out.print(str(path))
    return 0


def _show(result: TrainResult, output: Path, as_json: bool) -> None:
    if as_json:
        print_json({
            "checkpoint": str(result.checkpoint), "steps": result.step, "tokens": result.tokens,
            "seconds": round(result.seconds, 1),
            "train_bpb": None if math.isnan(result.train_bpb) else result.train_bpb,
            "heldout_bpb": result.heldout_bpb, "heldout_bytes": result.heldout_bytes,
            "interrupted": result.interrupted})
    else:
        held = ("not measured" if result.heldout_bpb is None else
                f"{result.heldout_bpb:.4f} bits per byte over {result.heldout_bytes:,} bytes")
        out.print(f"{result.checkpoint}: {result.step:,} steps, {result.tokens:,} tokens, "
                  f"{result.seconds:.0f} s, held-out {held}")


def quantize(
    checkpoint: Annotated[Path, typer.Argument(
        metavar="CHECKPOINT", help="A checkpoint that sterna train wrote, checkpoint.pt, or its "
                                   "folder.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write.")],
    profile: Annotated[str | None, typer.Option(
        help="Numeric profile: S16 or C12. Default: the one that was trained for.")] = None,
    text: Annotated[Path | None, typer.Option(
        help="Text to measure on. Default: the held-out part of the training text, if that "
             "is at hand.")] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Turn a checkpoint into a quantised model file.

    Measures both on held-out text, if there is one.

    Example: sterna quantize runs/tiny -o tiny.safetensors --profile S16
    """
    numbers = None if profile is None else PROFILES[choose("--profile", profile, PROFILES)]
    check_file(output)
    with Stages(quiet) as stage:
        stage("load torch", quick=True)
        from sterna.model.training.quantize import quantize_checkpoint
    data = None if text is None else read_text(text)
    with Stages(quiet) as stage:
        model = quantize_checkpoint(checkpoint, numbers, heldout=data, note=stage)
    output.parent.mkdir(parents=True, exist_ok=True)
    model.save(output)
    figures = {"output": str(output), "bytes": output.stat().st_size, "sha256": model.sha256,
               **model.provenance.get("heldout", {})}
    if as_json:
        print_json(figures)
    else:
        held = model.provenance.get("heldout")
        measured = "" if not held else (
            f"; held-out bits per byte: float {held['float_bpb']:.4f}, "
            f"{model.profile.name} {held['integer_bpb']:.4f}")
        out.print(f"{output}: {figures['bytes']:,} bytes{measured}")
    return 0


COMMANDS = (train, quantize, report_run)
