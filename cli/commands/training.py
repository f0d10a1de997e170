"""``sterna train`` and ``sterna quantize``: from a text to a checkpoint, and to integers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sterna.cli.terminal.console import Stages, out, print_json, say
from sterna.cli.terminal.interrupt import INTERRUPTED
from sterna.cli.terminal.options import JsonOption, QuietOption, check_folder, choose
from sterna.model.config import NAMED_CONFIGS, NORMS, RESIDUALS, WEIGHTS, ModelConfig
from sterna.model.profile import PROFILES

if TYPE_CHECKING:
    from sterna.model.training.train import TrainResult

__all__ = ["COMMANDS", "quantize", "train"]


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
    steps: Annotated[int | None, typer.Option(help="Budget in optimiser steps.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Budget in minutes.")] = None,
    output: Annotated[Path | None, typer.Option(
        "-o", "--output",
        help="Folder for checkpoint, metrics and plot. Default: runs/CONFIG.")
    ] = None,
    resume: Annotated[bool, typer.Option(
        "--resume",
        help="Go on from the checkpoint in the output folder, if there is one.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of weights and data order.")] = 0,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    batch: Annotated[int | None, typer.Option(help="Windows per step.")] = None,
    window: Annotated[int | None, typer.Option(help="Bytes per window.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay of AdamW.")] = None,
    device: Annotated[str | None, typer.Option(
        help="torch device. Default: cuda if there is one, else cpu.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Train a float model with quantisation in the loop.

    Example: sterna train --config tiny --minutes 2 -o runs/tiny
    """
    from sterna.model.corpus import builtin_corpus, corpus_from_file
    with Stages(quiet) as stage:
        stage("load torch", quick=True)
        from sterna.model.training.train import TrainRecipe
        from sterna.model.training.train import train as run_training
    if (steps is None) == (minutes is None):
        raise ValueError("give the budget as --steps or as --minutes, but not both")
    if text is not None and docstrings:
        raise ValueError("--docstrings adds to the built-in text: leave it out with --text")
    named = ModelConfig.named(choose("--config", config, NAMED_CONFIGS))
    shape = ModelConfig(
        named.d if d is None else d, named.layers if layers is None else layers,
        named.dff if dff is None else dff, named.vocab, mixer, channel,
        choose("--norm", norm, NORMS), choose("--weights", weights, WEIGHTS),
        choose("--residual", residual, RESIDUALS))
    output = Path("runs") / config if output is None else output
    check_folder(output)
    corpus = builtin_corpus(docstrings=docstrings) if text is None else corpus_from_file(text)
    if shape.vocab <= 128:
        corpus = corpus.as_ascii()
    given: dict[str, Any] = {
        "lr": lr, "batch": batch, "window": window, "weight_decay": weight_decay}
    recipe = TrainRecipe.of(
        weights, **{name: value for name, value in given.items() if value is not None})
    say(f"{corpus.name}: {len(corpus.train):,} bytes to train on, "
        f"{len(corpus.heldout):,} held out", quiet)
    result = run_training(
        shape, corpus, run_dir=output, steps=steps, minutes=minutes, seed=seed, recipe=recipe,
        resume=resume, device=device, threads=threads, quiet=quiet)
    _show(result, output, as_json)
    return INTERRUPTED if result.interrupted else 0


def _show(result: TrainResult, output: Path, as_json: bool) -> None:
    if as_json:
        print_json({
            "checkpoint": str(result.checkpoint), "steps": result.step, "tokens": result.tokens,
            "seconds": round(result.seconds, 1),
            "train_bpb": None if math.isnan(result.train_bpb) else result.train_bpb,
            "heldout_bpb": result.heldout_bpb, "interrupted": result.interrupted})
    else:
        held = "not measured" if result.heldout_bpb is None else f"{result.heldout_bpb:.4f}"
        out.print(f"{result.checkpoint}: {result.step:,} steps, {result.tokens:,} bytes, "
                  f"{result.seconds:.0f} s, held-out {held} bits per byte")
    if result.interrupted:
        say(f"go on with the same command and --resume -o {output}")


def quantize(
    checkpoint: Annotated[Path, typer.Argument(
        metavar="CHECKPOINT", help="A checkpoint that sterna train wrote, checkpoint.pt.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write.")],
    profile: Annotated[str, typer.Option(help="Numeric profile: S16 or C12.")] = "S16",
    text: Annotated[Path | None, typer.Option(
        help="Text to measure on. Default: the held-out part of the training text, if that "
             "is the built-in one.")] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Turn a checkpoint into a quantised model file.

    Measures both on held-out text, if there is one.

    Example: sterna quantize runs/tiny/checkpoint.pt -o tiny.safetensors --profile S16
    """
    from sterna.model.files import read_text
    choose("--profile", profile, PROFILES)
    with Stages(quiet) as stage:
        stage("load torch", quick=True)
        from sterna.model.training.quantize import quantize_checkpoint
    data = None if text is None else read_text(text)
    with Stages(quiet) as stage:
        model = quantize_checkpoint(checkpoint, PROFILES[profile], heldout=data, note=stage)
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
            f"{profile} {held['integer_bpb']:.4f}")
        out.print(f"{output}: {figures['bytes']:,} bytes{measured}")
    return 0


COMMANDS = (train, quantize)
