"""``sterna train`` and ``sterna quantize``: from a text to a checkpoint, and to integers."""

from __future__ import annotations

import math
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sterna.cli.terminal.console import Stages, out, print_json, say
from sterna.cli.terminal.options import (
    JsonOption,
    QuietOption,
    check_file,
    check_folder,
    choose,
    how_to_resume,
    refuse,
)
from sterna.model.config import NAMED_CONFIGS, ModelConfig
from sterna.model.corpus import Corpus, builtin_corpus, corpus_from_file, left_out, with_general
from sterna.model.files import read_text
from sterna.model.processes import is_first_process
from sterna.model.profile import PROFILES
from sterna.model.shards.text import ShardText
from sterna.model.tokenizer import ASCII_VOCAB
from sterna.model.tokens.files import fitted, load_tokenizer
from sterna.model.tokens.text import MemoryText, TokenText
from sterna.model.tokens.tokenizer import BYTES, Tokenizer
from sterna.model.torch.training.recipe import (
    TrainRecipe,
    TrainSettings,
    parse_setting,
    read_settings,
)
from sterna.model.torch.training.run_folder import RunFolder

if TYPE_CHECKING:
    from sterna.model.torch.training.train import TrainResult

__all__ = ["COMMANDS", "in_tokens", "quantize", "report_run", "train"]


def train(
    config: Annotated[str, typer.Option(help="Size: micro (ASCII), nano, tiny or small.")] = "tiny",
    mixer: Annotated[str | None, typer.Option(
        metavar="PATTERN",
        help="Token mixers of the layers, such as '3*mlgru + window(size=64)', or FILE.py:CLASS; "
             "sterna mixers --list names them. Default: mlgru.")] = None,
    text: Annotated[Path | None, typer.Option(
        help="UTF-8 text to train on; its last tenth is held out. Default: the manual of this "
             "Python.")] = None,
    docstrings: Annotated[bool, typer.Option(
        "--docstrings", help="Add the standard library's docstrings to the manual.")] = False,
    general_text: Annotated[Path | None, typer.Option(
        metavar="FILE",
        help="UTF-8 text of a more general kind to start with; its share falls to none. Cannot be "
             "combined with --docstrings or --data. Default: for the manual, the standard "
             "library's docstrings.")] = None,
    data: Annotated[Path | None, typer.Option(
        metavar="FOLDER",
        help="Train on a folder from sterna data build, with the vocabulary of its tokenizer.",
    )] = None,
    tokenizer: Annotated[Path | None, typer.Option(
        metavar="FILE",
        help="Tokenizer from sterna tokenizer train; it sets the vocabulary. Default: bytes.",
    )] = None,
    steps: Annotated[int | None, typer.Option(help="Length of the run in optimiser steps.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Length of the run in minutes.")] = None,
    recipe: Annotated[Path | None, typer.Option(
        metavar="FILE.toml", help="Settings of model, recipe and run, by name.")] = None,
    given: Annotated[list[str] | None, typer.Option(
        "--set", metavar="NAME=VALUE",
        help="One such setting, such as lr=0.005 or d=64; overrides the file; may be repeated. "
             "An unknown name is refused with a list of all names.")] = None,
    profile: Annotated[str, typer.Option(
        help="Numeric profile to train for: S16 applies its limits, C12 also rounds values to "
             "its formats.")] = "S16",
    seed: Annotated[int, typer.Option(help="Seed of weights and data order.")] = 0,
    output: Annotated[Path | None, typer.Option(
        "-o", "--output",
        help="Folder for checkpoint, metrics and plot. Default: runs/CONFIG.")] = None,
    resume: Annotated[bool, typer.Option(
        "--resume", help="Continue from the checkpoint in the output folder.")] = False,
    auto_resume: Annotated[bool, typer.Option(
        "--auto-resume", help="Continue if there is a checkpoint, else start.")] = False,
    overwrite: Annotated[bool, typer.Option(
        "--overwrite", help="Replace the checkpoint in the output folder.")] = False,
    report: Annotated[bool, typer.Option(
        "--report/--no-report", help="Write report.html at the end.")] = True,
    device: Annotated[str | None, typer.Option(
        help="torch device. Default: cuda if there is one, else cpu.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Train a float model with quantisation in the loop.

    Example: sterna train --config tiny --minutes 2 --set lr=0.005 -o runs/tiny
    """
    quiet = quiet or not is_first_process()
    if (steps is None) == (minutes is None):
        raise ValueError("give the budget as --steps or as --minutes, but not both")
    if docstrings:
        for other, source in (("--data", data), ("--text", text)):
            refuse(f"adds to the built-in text: leave it out with {other}", docstrings=source)
        refuse("goes with --text or the built-in text: leave it out with --docstrings",
               general_text=general_text)
    if data is not None:
        if text is not None:
            raise ValueError("give the text as --text or as --data, but not both")
        refuse("goes with --text or the built-in text: leave it out with --data",
               general_text=general_text)
        refuse("goes with a text: what sterna data build wrote has its own", tokenizer=tokenizer)
    shards = None if data is None else ShardText(data)
    tokens = load_tokenizer(tokenizer) if tokenizer else shards.tokenizer if shards else None
    named = ModelConfig.named(choose("--config", config, NAMED_CONFIGS))
    settings = TrainSettings.of(
        replace(named, vocab=named.vocab if tokens is None else tokens.vocab),
        _named_settings(recipe, given or [],
                        {"mixer": mixer, "device": device, "threads": threads}),
        _command())
    shape = settings.config
    numbers = PROFILES[choose("--profile", profile, PROFILES)]
    output = Path("runs") / config if output is None else output
    check_folder(output)
    RunFolder(output).resumes(      # refused before the text is read
        resume=resume, auto_resume=auto_resume, overwrite=overwrite)
    with Stages(quiet) as stage:
        stage("load torch", quick=True)
        from sterna.model.torch.training.distributed import joined
        from sterna.model.torch.training.train import train as run_training
        from sterna.model.torch.training.train import training_device
    if shards is not None:
        corpus: Corpus | TokenText = shards
        say(f"{shards.name}: {len(shards):,} tokens of {shards.index.train.bytes:,} bytes to train "
            f"on, {shards.index.heldout.bytes:,} bytes held out", quiet)
    else:
        corpus = in_tokens(_corpus_of(text, docstrings, general_text, settings.recipe),
                           tokens or fitted(BYTES, shape.vocab), quiet)
    place = settings.execution.device
    with joined(lambda local_rank: training_device(place, local_rank)) as processes:
        result = run_training(
            shape, corpus, run_dir=output, steps=steps, minutes=minutes, seed=seed,
            recipe=settings.recipe, resume=resume, auto_resume=auto_resume, overwrite=overwrite,
            profile=numbers, execution=settings.execution, recording=settings.recording,
            quiet=quiet)
        is_first = processes.is_first
        if result.interrupted:      # a launcher ends all processes if one has another exit code
            processes.on_first(lambda: _finish(result, output, report, quiet, as_json))
            if is_first:
                say(how_to_resume(output, overwrite=overwrite, auto_resume=auto_resume))
    # A report may take longer than the timeout of the process group.
    if is_first and not result.interrupted:
        _finish(result, output, report, quiet, as_json)
    return 128 + (result.stop_signal or signal.SIGINT) if result.interrupted else 0


def _corpus_of(
    path: Path | None, docstrings: bool, general: Path | None, recipe: TrainRecipe,
) -> Corpus:
    """The text to train on: a file or the manual, optionally with general text to begin with."""
    if path is None:
        # Without docstrings if the text already has them or they would not be read.
        begins = (not docstrings and general is None and recipe.general_share > 0.0
                  and not recipe.carry_state and recipe.order == "random")
        found = builtin_corpus(docstrings, general=begins)
    else:
        found = corpus_from_file(path)
    return found if general is None else with_general(found, read_text(general))


def in_tokens(whole: Corpus, tokenizer: Tokenizer, quiet: bool) -> Corpus | MemoryText:
    """The text in tokens; prints its sizes."""
    text = whole
    if tokenizer.kind == BYTES.kind and tokenizer.vocab <= ASCII_VOCAB:
        text = whole.as_ascii()
        say(left_out(whole.train + whole.heldout), quiet)
    begins = f", {len(text.general):,} of general text to begin with" if text.general else ""
    sizes = f"{len(text.train):,} bytes to train on{begins}, {len(text.heldout):,} held out"
    if tokenizer.kind == BYTES.kind:
        say(f"{text.name}: {sizes}", quiet)
        return text
    found = MemoryText(text, tokenizer)
    say(f"{text.name}: {len(found):,} tokens of {sizes}", quiet)
    return found


def _named_settings(
    file: Path | None, given: list[str], options: dict[str, Any],
) -> dict[str, Any]:
    """Settings by name: from the file, overridden by options or ``--set``."""
    named = {name: value for name, value in options.items() if value is not None}
    pairs = [parse_setting(each) for each in given]
    names = [name for name, _ in pairs]
    for name in names:
        if name in named or names.count(name) > 1:
            raise ValueError(f"{name} is given twice: leave out one --set {name}=...")
    return {**({} if file is None else read_settings(file)), **named, **dict(pairs)}


def _command() -> tuple[str, ...]:
    """The command line of ``sterna train``; empty if another program calls it."""
    return ("sterna", *sys.argv[1:]) if sys.argv[1:2] == ["train"] else ()


def _finish(
    result: TrainResult, output: Path, report: bool, quiet: bool, as_json: bool,
) -> None:
    """Write the report, which needs the whole model in one file, and print the result."""
    if report and result.checkpoint.is_file():
        from sterna.cli.reports.run_page import write_run_report
        with Stages(quiet) as stage:
            stage("write the report", quick=True)
            write_run_report(RunFolder(output))
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


def report_run(
    folder: Annotated[Path, typer.Argument(
        metavar="FOLDER", help="Folder of a run of sterna train, finished or not.")],
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", metavar="FILE.html",
        help="File to write. Default: report.html in the folder.")] = None,
    quiet: QuietOption = False,
) -> int:
    """Write the report of a training run as one page.

    It shows loss, learning rate, codes that change or are zero, what ternary weights and integers
    cost by layer, samples of text, recipe, versions and command.

    Example: sterna report-run runs/tiny
    """
    check_file(output, suffix=".html")
    if folder.is_file():
        raise ValueError(f"{folder} is a file: give the folder of a run, {folder.parent}")
    with Stages(quiet) as stage:
        stage("load torch", quick=True)
        from sterna.cli.reports.run_page import write_run_report
        stage("write the report")
        path = write_run_report(RunFolder(folder), output)
    out.print(str(path))
    return 0


def quantize(
    checkpoint: Annotated[Path, typer.Argument(
        metavar="CHECKPOINT", help="A checkpoint.pt from sterna train, or its folder.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write.")],
    profile: Annotated[str | None, typer.Option(
        help="Numeric profile: S16 or C12. Default: the one it was trained for.")] = None,
    text: Annotated[Path | None, typer.Option(
        help="Text to measure on. Default: the held-out part of the training text, if "
             "available.")] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Turn a checkpoint into a quantised model file.

    Measures both on held-out text, if there is any.

    Example: sterna quantize runs/tiny -o tiny.safetensors --profile S16
    """
    numbers = None if profile is None else PROFILES[choose("--profile", profile, PROFILES)]
    check_file(output)
    with Stages(quiet) as stage:
        stage("load torch", quick=True)
        from sterna.model.torch.training.quantize import quantize_checkpoint
        data = None if text is None else read_text(text)
        model = quantize_checkpoint(checkpoint, numbers, heldout=data, note=stage)
    output.parent.mkdir(parents=True, exist_ok=True)
    model.save(output)
    size, held = output.stat().st_size, model.provenance.get("heldout", {})
    if as_json:
        print_json({"output": str(output), "bytes": size, "sha256": model.sha256, **held})
    else:
        measured = held and (f"; held-out bits per byte: float {held['float_bpb']:.4f}, "
                             f"{model.profile.name} {held['integer_bpb']:.4f}")
        out.print(f"{output}: {size:,} bytes{measured or ''}")
    return 0


COMMANDS = (train, quantize, report_run)
