"""``sterna bench streaming``: a long text read with all keys, with a window, and with sinks."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sterna.cli.terminal.console import Stages, out, print_json, print_table, progress_bar, say
from sterna.cli.terminal.options import (
    JsonOption,
    QuietOption,
    check_folder,
    choose,
    how_to_resume,
)
from sterna.model.config import NAMED_CONFIGS, WEIGHTS, ModelConfig
from sterna.model.training.run_folder import RunFolder

if TYPE_CHECKING:
    from sterna.model.corpus import Corpus
    from sterna.model.study.streaming import Note, Streaming
    from sterna.model.training.checkpoint import Checkpoint
    from sterna.model.training.train import TrainResult

__all__ = ["show_streaming", "streaming", "write_streaming"]


def streaming(
    checkpoint: Annotated[Path | None, typer.Option(
        metavar="FILE.pt", help="A model with the mixer attention in every layer, instead of "
                                "training one.")] = None,
    config: Annotated[str | None, typer.Option(
        help="Size of the model to train: micro, nano, tiny or small. Default: tiny.")] = None,
    weights: Annotated[str | None, typer.Option(
        help="Weights of its projections: ternary or float. Default: float.")] = None,
    steps: Annotated[int | None, typer.Option(
        help="Steps to train it for, in windows of sinks + size bytes. Default: 1000.")] = None,
    tokens: Annotated[int, typer.Option(help="Bytes to read.")] = 20_000,
    sinks: Annotated[int, typer.Option(help="First bytes that sinks always see.")] = 4,
    size: Annotated[int, typer.Option(
        help="Newest bytes that sinks see; the plain window sees sinks + size.")] = 252,
    most_keys: Annotated[int, typer.Option(
        help="Where full attention ends, whose keys grow with the text.")] = 2048,
    text: Annotated[Path | None, typer.Option(
        help="UTF-8 text to train on; its last tenth is read. Default: the manual of this "
             "Python.")] = None,
    seed: Annotated[int | None, typer.Option(
        help="Seed of weights and data order. Default: 0.")] = None,
    resume: Annotated[bool, typer.Option(
        "--resume", help="Go on from the checkpoint in the output folder.")] = False,
    overwrite: Annotated[bool, typer.Option(
        "--overwrite", help="Replace the checkpoint in the output folder.")] = False,
    output: Annotated[Path, typer.Option(
        "-o", "--output", help="Folder for streaming.json, streaming.svg and the model.",
    )] = Path("runs/streaming"),
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Read a long text with a model of attention, in three forms of the same weights.

    All keys, a plain window of the newest, and a window beside the first keys (attention sinks).
    Every byte is also read one at a time, to see that the state stays as large as it is declared.

    Example: sterna bench streaming --steps 200 --tokens 4000
    """
    from sterna.model.corpus import builtin_corpus, corpus_from_file
    check_folder(output)
    if checkpoint is None:
        RunFolder(output).resumes(resume=resume, auto_resume=False, overwrite=overwrite)
    else:
        for option, given in (("--config", config), ("--weights", weights), ("--steps", steps),
                              ("--seed", seed), ("--resume", resume or None),
                              ("--overwrite", overwrite or None)):
            if given is not None:
                raise ValueError(f"{option} is for a model to be trained: leave it out with "
                                 f"--checkpoint")
    with Stages(quiet) as stage:
        stage("load torch", quick=True)
        from sterna.model.study.streaming import Streaming
        from sterna.model.training.checkpoint import load_checkpoint
    plan = Streaming(tokens, sinks, size, most_keys)
    corpus = builtin_corpus() if text is None else corpus_from_file(text)
    if checkpoint is None:
        named = ModelConfig.named(choose(
            "--config", "tiny" if config is None else config, NAMED_CONFIGS))
        shape = ModelConfig(
            named.d, named.layers, named.dff, named.vocab, mixer="attention",
            weights=choose("--weights", "float" if weights is None else weights, WEIGHTS))
    else:
        found = load_checkpoint(checkpoint)
        if not {"batch", "window"} <= set(found.recipe):
            raise ValueError(f"{checkpoint} does not say in what windows it was trained: give a "
                             f"checkpoint that sterna train wrote")
        shape = found.config
    if shape.vocab <= 128:
        corpus = corpus.as_ascii()
    if len(corpus.heldout) <= tokens:
        raise ValueError(f"the held-out text of {corpus.name} has {len(corpus.heldout):,} bytes: "
                         f"--tokens must be below that, got {tokens}")
    plan.mixer("full", shape.mixer)     # refused before anything is trained
    if checkpoint is None:
        trained = _train(shape, corpus, plan, output, 1000 if steps is None else steps,
                         seed or 0, resume, overwrite, quiet)
        if trained.interrupted:
            say(how_to_resume(output, overwrite=overwrite))
            return 128 + (trained.stop_signal or signal.SIGINT)
        found = load_checkpoint(trained.checkpoint)
    return _stream(found, corpus, plan, output, quiet, as_json)


def _train(
    shape: ModelConfig, corpus: Corpus, plan: Streaming, output: Path, steps: int, seed: int,
    resume: bool, overwrite: bool, quiet: bool,
) -> TrainResult:
    """Train a model in the output folder, or begin to."""
    from sterna.model.training.recipe import Recording, TrainRecipe
    from sterna.model.training.train import train
    say(f"train {shape.mixer} with {shape.weights} weights, d {shape.d}, {shape.layers} layers, "
        f"in windows of {plan.keys} bytes", quiet)
    return train(shape, corpus, run_dir=output, steps=steps, seed=seed, resume=resume,
                 overwrite=overwrite, quiet=quiet,
                 recipe=TrainRecipe.of(shape.weights, window=plan.keys),
                 recording=Recording(heldout_evaluations=1))


def _stream(
    found: Checkpoint, corpus: Corpus, plan: Streaming, output: Path, quiet: bool, as_json: bool,
) -> int:
    """Read, write the files and show the table."""
    import torch

    from sterna.model.study.streaming_result import stream
    from sterna.model.tokenizer import check_bytes, encode
    from sterna.model.tokens.tokenizer import BYTES
    if found.tokenizer.kind != BYTES.kind:
        raise ValueError("streaming reads bytes, and the model of this checkpoint reads "
                         f"{found.tokenizer.kind} tokens")
    heard = corpus.heldout[:plan.tokens + 1]
    check_bytes(heard, found.config.vocab, f"the held-out text of {corpus.name}")
    result = stream(found.model(), torch.from_numpy(encode(heard).copy()), plan,
                    decoded=plan.tokens, note=lambda label: _bar(label, quiet))
    result.facts.update(
        model=found.config.to_json(), text=corpus.name, trained_on=found.corpus_name,
        seed=found.seed, steps=found.step, window=found.recipe.get("window"),
        trained_tokens=found.step * found.recipe["batch"] * found.recipe["window"],
        heldout_bits_per_byte=found.heldout_bpb)
    data = result.as_dict()
    written = write_streaming(output, data, _title(data))
    if as_json:
        print_json(data)
    else:
        show_streaming(data)
        for path in written:
            out.print(f"{path}: {path.stat().st_size:,} bytes")
    for problem in result.problems():
        say(f"sterna: {problem}")
    return 1 if result.problems() else 0


def show_streaming(data: dict[str, Any]) -> None:
    """Print the table of ``StreamingResult.as_dict()``."""
    keys = data["plan"]["keys"]
    print_table(
        "bits per byte", ("attention", f"to {keys}", f"to {2 * keys}", "after", "tokens",
                          "state words", "constant", "µs a token"),
        [(each["form"], *("-" if each[part] is None else f"{each[part]:.3f}"
                           for part in ("first", "between", "rest")),
          each["tokens"], each["state_words"],
          "-" if "decode_us" not in each else each["constant_state_words"] is not None,
          "-" if "decode_us" not in each else round(each["decode_us"]))
         for each in data["forms"]])


def write_streaming(
    folder: Path, data: dict[str, Any], title: str, name: str = "streaming",
) -> list[Path]:
    """Write ``streaming.json`` and ``streaming.svg``, or of another name; return their paths.

    Raises
    ------
    OSError
        If one cannot be written.
    """
    from sterna.cli.reports.streaming_plot import streaming_plot
    from sterna.cli.reports.vector import svg_file
    from sterna.model.files import write_atomically
    folder.mkdir(parents=True, exist_ok=True)
    return [write_atomically(folder / f"{name}.{kind}", content) for kind, content in (
        ("json", json.dumps(data, indent=1) + "\n"),
        ("svg", svg_file(streaming_plot(data, title))))]


def _title(data: dict[str, Any]) -> str:
    model = data["model"]
    return (f"{data['text']}, d {model['d']}, {model['layers']} layers, "
            f"{model.get('weights', 'ternary')} weights, trained on "
            f"{data['trained_tokens'] / 1e6:.1f} million bytes in windows of {data['window']}")


@contextmanager
def _bar(label: str, quiet: bool) -> Iterator[Note]:
    display, move = progress_bar(label, quiet)
    with display:
        yield move
