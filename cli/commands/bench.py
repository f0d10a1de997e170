"""``sterna bench``: measurements of ways to mix tokens, each a command of its own."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sterna.cli.terminal.console import Stages, out, print_files, print_json, progress_bar, say
from sterna.cli.terminal.options import (
    JsonOption,
    QuietOption,
    check_folder,
    choose,
    how_to_resume,
    refuse,
)
from sterna.cli.terminal.tables import Table
from sterna.model.checks import check_whole
from sterna.model.config import NAMED_CONFIGS, WEIGHTS, ModelConfig
from sterna.model.training.recipe import Recording, TrainRecipe
from sterna.model.training.run_folder import RunFolder

if TYPE_CHECKING:
    from sterna.model.corpus import Corpus
    from sterna.model.study.attention_benchmark import AttentionResult
    from sterna.model.study.streaming import Streaming
    from sterna.model.training.checkpoint import Checkpoint

__all__ = ["BENCH", "attention", "show_streaming", "streaming", "write_streaming"]

_QUICK = {"lengths": (128, 256, 512), "batch": 8, "runs": 10, "seconds": 1.0}


def attention(
    lengths: Annotated[str | None, typer.Option(
        metavar="N,N,...", help="Sequence lengths. Default: 128 to 6000.")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences at a time. Default: 32.")] = None,
    d: Annotated[int, typer.Option(help="Channels.")] = 64,
    heads: Annotated[int, typer.Option(help="Heads of attention.")] = 4,
    runs: Annotated[int | None, typer.Option(
        help="Timed runs of each contestant per length. Default: 100.")] = None,
    seconds: Annotated[float | None, typer.Option(
        help="Stop a contestant after this many seconds, but after three runs at the earliest. "
             "Default: 5.")] = None,
    part: Annotated[str, typer.Option(
        help="core (what lies between the projections), or float or ternary: the whole mixer "
             "with such projections.")] = "core",
    backward: Annotated[bool, typer.Option(
        "--backward", help="Time forward and backward together.")] = False,
    memory: Annotated[float | None, typer.Option(
        "--memory-gb", help="Memory limit in 10^9 bytes. Default: 90 % of what is free.")] = None,
    fit: Annotated[bool, typer.Option(
        "--fit", help="If a contestant does not fit in memory, halve the batch of all until it "
                      "does. Default: do not run it at that length.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Seed of inputs and weights.")] = 0,
    quick: Annotated[bool, typer.Option(
        "--quick", help="Short sequences, small batch, few runs: a few seconds.")] = False,
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", metavar="DIR",
        help="Write attention.json, .svg and .html to this folder after every length.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Time attention and the MLGRU as sequences grow.

    One layer with random inputs, the experiment of the papers on linear attention. Softmax
    attention is timed twice: with its matrix written to memory, and fused; the speed of the others
    is relative to both. OMP_NUM_THREADS sets the number of threads. With one thread, processor
    time is measured, which other programs disturb least. With glibc, freed memory is kept for the
    next run, as torch does on CUDA.

    Example: sterna bench attention --quick
    """
    with Stages(quiet) as stage:
        stage("load torch", quick=True)
        from sterna.model.study.attention_benchmark import PARTS, Settings, bench_attention
    choose("--part", part, PARTS)
    check_whole("--seed", seed, 0, (1 << 63) - 1)
    if memory is not None and not 0 < memory < 1e18:
        raise ValueError(f"--memory-gb must be above 0 and below 10^18, got {memory:g}")
    check_folder(output)
    given = {"lengths": None if lengths is None else _lengths(lengths), "batch": batch,
             "runs": runs, "seconds": seconds}
    chosen: dict[str, Any] = (_QUICK if quick else {}) | {
        name: value for name, value in given.items() if value is not None}
    settings = Settings(
        **chosen, d=d, heads=heads, part=part, backward=backward, memory_gb=memory, fit=fit,
        device=device, seed=seed)
    so_far: list[AttentionResult] = []
    written: list[Path] = []

    def keep(result: AttentionResult) -> None:
        so_far[:] = [result]
        if output is not None:
            from sterna.cli.reports.bench_page import write_attention_report
            written[:] = write_attention_report(output, result)

    try:
        bench_attention(settings, note=lambda text: say(text, quiet), done=keep)
    finally:        # an interruption leaves the lengths that are done
        for result in so_far:
            _show_attention(result, written, as_json)
    return 0


def _lengths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"--lengths must be whole numbers with commas between, such as 128,1024, got "
            f"{text!r}") from None


def _show_attention(result: AttentionResult, written: list[Path], as_json: bool) -> None:
    from sterna.cli.reports.bench_page import attention_tables, misfits, setting
    from sterna.model.study.attention_benchmark import findings
    if as_json:
        print_json(result.as_dict())
        return
    out.print(setting(result))
    for table in attention_tables(result):
        out.print()
        table.print()
    out.print()
    for line in (*misfits(result), *findings(result)):
        out.print(line)
    print_files(written)


def streaming(
    checkpoint: Annotated[Path | None, typer.Option(
        metavar="FILE.pt", help="A trained model with the mixer attention in every layer. "
                                "Default: train one.")] = None,
    config: Annotated[str | None, typer.Option(
        help="Size to train: micro, nano, tiny or small. Default: tiny.")] = None,
    weights: Annotated[str | None, typer.Option(
        help="Its projections: ternary or float. Default: float.")] = None,
    steps: Annotated[int | None, typer.Option(
        help="Steps of training, in windows of sinks + size bytes. Default: 1000.")] = None,
    tokens: Annotated[int, typer.Option(help="Bytes to read.")] = 20_000,
    sinks: Annotated[int, typer.Option(help="First bytes that sinks always see.")] = 4,
    size: Annotated[int, typer.Option(
        help="Newest bytes that sinks see; the plain window sees sinks + size.")] = 252,
    most_keys: Annotated[int, typer.Option(
        help="Bytes that full attention reads, as its keys grow with the text.")] = 2048,
    text: Annotated[Path | None, typer.Option(
        help="UTF-8 text to train on; its last tenth is read. Default: the manual of this "
             "Python.")] = None,
    seed: Annotated[int | None, typer.Option(
        help="Seed of weights and data order. Default: 0.")] = None,
    resume: Annotated[bool, typer.Option(
        "--resume", help="Continue from the checkpoint in the output folder.")] = False,
    overwrite: Annotated[bool, typer.Option(
        "--overwrite", help="Replace the checkpoint in the output folder.")] = False,
    output: Annotated[Path, typer.Option(
        "-o", "--output", help="Folder for streaming.json, streaming.svg and the model.",
        )] = Path("runs/streaming"),
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Read a long text with a model of attention, in three forms of the same weights.

    The forms are: all keys, a plain window of the newest keys, and a window beside the first keys
    (attention sinks). The text is also read byte by byte, to check that the state has its declared
    size.

    Example: sterna bench streaming --steps 200 --tokens 4000
    """
    from sterna.model.corpus import builtin_corpus, corpus_from_file
    check_folder(output)
    if checkpoint is None:
        RunFolder(output).resumes(resume=resume, auto_resume=False, overwrite=overwrite)
    else:
        refuse("is for a model to be trained: leave it out with --checkpoint", config=config,
               weights=weights, steps=steps is not None, seed=seed is not None, resume=resume,
               overwrite=overwrite)
    with Stages(quiet) as stage:
        stage("load torch", quick=True)
        from sterna.model.study.streaming import Streaming
        from sterna.model.training.checkpoint import load_checkpoint
        from sterna.model.training.train import train
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
        say(f"train {shape.mixer} with {shape.weights} weights, d {shape.d}, {shape.layers} "
            f"layers, in windows of {plan.keys} bytes", quiet)
        trained = train(shape, corpus, run_dir=output, steps=1000 if steps is None else steps,
                        seed=seed or 0, resume=resume, overwrite=overwrite, quiet=quiet,
                        recipe=TrainRecipe.of(shape.weights, window=plan.keys),
                        recording=Recording(heldout_evaluations=1))
        if trained.interrupted:
            say(how_to_resume(output, overwrite=overwrite))
            return 128 + (trained.stop_signal or signal.SIGINT)
        found = load_checkpoint(trained.checkpoint)
    return _stream(found, corpus, plan, output, quiet, as_json)


def _stream(
    found: Checkpoint, corpus: Corpus, plan: Streaming, output: Path, quiet: bool, as_json: bool,
) -> int:
    """Read, write the files and show the table."""
    import torch

    from sterna.model.study.streaming import stream
    from sterna.model.tokenizer import check_bytes, encode
    from sterna.model.tokens.tokenizer import BYTES
    if found.tokenizer.kind != BYTES.kind:
        raise ValueError("streaming reads bytes, and the model of this checkpoint reads "
                         f"{found.tokenizer.kind} tokens")
    heard = corpus.heldout[:plan.tokens + 1]
    check_bytes(heard, found.config.vocab, f"the held-out text of {corpus.name}")
    result = stream(found.model(), torch.from_numpy(encode(heard).copy()), plan,
                    decoded=plan.tokens, note=lambda label: progress_bar(label, quiet))
    result.facts.update(
        model=found.config.to_json(), text=corpus.name, trained_on=found.corpus_name,
        seed=found.seed, steps=found.step, window=found.recipe.get("window"),
        trained_tokens=found.step * found.recipe["batch"] * found.recipe["window"],
        heldout_bits_per_byte=found.heldout_bpb)
    data = result.as_dict()
    model = data["model"]
    written = write_streaming(output, data, (
        f"{data['text']}, d {model['d']}, {model['layers']} layers, "
        f"{model.get('weights', 'ternary')} weights, trained on "
        f"{data['trained_tokens'] / 1e6:.1f} million bytes in windows of {data['window']}"))
    if as_json:
        print_json(data)
    else:
        show_streaming(data)
        print_files(written)
    for problem in result.problems():
        say(f"sterna: {problem}")
    return 1 if result.problems() else 0


def show_streaming(data: dict[str, Any]) -> None:
    """Print the table of ``StreamingResult.as_dict()``."""
    keys = data["plan"]["keys"]
    Table("bits per byte", ("attention", f"to {keys}", f"to {2 * keys}", "after", "tokens",
                            "state words", "constant", "µs a token"), [
        (each["form"], *("-" if each[part] is None else f"{each[part]:.3f}"
                         for part in ("first", "between", "rest")),
         each["tokens"], each["state_words"],
         *((each["constant_state_words"] is not None, round(each["decode_us"]))
           if "decode_us" in each else ("-", "-")))
        for each in data["forms"]]).print()


def write_streaming(
    folder: Path, data: dict[str, Any], title: str, name: str = "streaming",
) -> list[Path]:
    """Write ``streaming.json`` and ``streaming.svg``, or of another name; return their paths."""
    from sterna.cli.reports.bench_page import streaming_plot
    from sterna.cli.reports.vector import svg_file
    from sterna.model.files import write_atomically
    folder.mkdir(parents=True, exist_ok=True)
    return [write_atomically(folder / f"{name}.{kind}", content) for kind, content in (
        ("json", json.dumps(data, indent=1) + "\n"),
        ("svg", svg_file(streaming_plot(data, title))))]


BENCH = typer.Typer(name="bench", rich_markup_mode=None, help="Benchmark ways to mix tokens.")

for command in (attention, streaming):
    BENCH.command()(command)
