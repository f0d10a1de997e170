"""``sterna data``: convert texts to training data on disk, and inspect such a folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from sterna.cli.terminal.console import Stages, out, print_json, progress_bar, say
from sterna.cli.terminal.options import JsonOption, QuietOption, check_folder, choose, refuse
from sterna.cli.terminal.tables import Table
from sterna.model.shards.build import SEPARATOR, SHARD_TOKENS, BuildOptions
from sterna.model.shards.build import build as build_folder
from sterna.model.shards.files import Index, read_index
from sterna.model.shards.files import verify as verify_folder
from sterna.model.shards.inputs import DATASET, FORMATS, are_one_document, find_inputs
from sterna.model.shards.split import Split
from sterna.model.tokens.files import load_tokenizer
from sterna.model.tokens.tokenizer import ByteTokenizer

__all__ = ["DATA", "build", "info"]

DATA = typer.Typer(
    name="data", rich_markup_mode=None, help="Make texts of any size ready for training.")

_TELL_S = 0.2


def build(
    inputs: Annotated[list[str], typer.Argument(
        metavar="INPUT...",
        help="Text files or JSON lines (also as .gz), Parquet files, folders of these; - for "
             "standard input; hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT for a Hugging Face "
             "data set, by name or saved in a folder.")],
    output: Annotated[Path, typer.Option(
        "-o", "--output", help="Folder for shards, index and held-out text.")],
    tokenizer: Annotated[str, typer.Option(
        metavar="FILE|bytes", help="Tokenizer file, or bytes.")] = ByteTokenizer.kind,
    heldout: Annotated[float | None, typer.Option(
        help="Share of the text to hold out, from 0 to 0.5: the ends of long documents, and short "
             "ones chosen by a hash of their text. Default: 0.01.")] = None,
    heldout_file: Annotated[Path | None, typer.Option(
        help="Hold out this text instead of a part of the inputs.")] = None,
    seed: Annotated[int | None, typer.Option(
        help="Chooses which short documents are held out. Default: 0.")] = None,
    kind: Annotated[str, typer.Option(
        "--format", help="Format of the inputs: auto (by their names), text, jsonl or parquet.",
        )] = FORMATS[0],
    column: Annotated[str | None, typer.Option(
        help="Field of JSON lines, or column of tables, that holds the text. Default: text.",
        )] = None,
    separator: Annotated[str | None, typer.Option(
        help="Text between two documents; \\n is a line feed. Default: an empty line. If the "
             "tokenizer has an end-of-text token, only for the held-out text.")] = None,
    shard_tokens: Annotated[int, typer.Option(help="Tokens per shard.")] = SHARD_TOKENS,
    jobs: Annotated[int | None, typer.Option(
        help="Processes to run the tokenizer in. Default: 1.")] = None,
    overwrite: Annotated[bool, typer.Option(
        "--overwrite", help="Replace an existing data folder.")] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Make texts into shards of tokens on disk, with a held-out text beside them.

    Texts and shards may be larger than memory. The same inputs give the same bytes.

    Example: sterna data build corpus/ more.jsonl -o data
    """
    if heldout_file is not None:
        refuse("is for a part of the inputs: leave it out with --heldout-file",
               heldout=heldout is not None, seed=seed is not None)
    if tokenizer == ByteTokenizer.kind:
        refuse("is for --tokenizer FILE: bytes are tokens as they are read", jobs=jobs is not None)
    if heldout == 0:
        refuse("chooses what is held out: leave it out with --heldout 0", seed=seed is not None)
    choose("--format", kind, FORMATS)
    check_folder(output)
    if kind != FORMATS[0] and all(each.startswith(DATASET) for each in inputs):
        raise ValueError(f"--format says what files are, and all inputs are data sets ({DATASET}): "
                         f"leave it out")
    if (seed is not None or separator is not None) and are_one_document(find_inputs(inputs, kind)):
        refuse("is for several documents, and one text file is one: leave it out",
               seed=seed is not None, separator=separator is not None)
    options = BuildOptions(
        ByteTokenizer() if tokenizer == ByteTokenizer.kind else load_tokenizer(tokenizer),
        Split(Split().fraction if heldout is None else heldout, seed or 0),
        heldout_file, kind, column,
        SEPARATOR if separator is None else separator.replace("\\n", "\n"),
        shard_tokens, jobs=1 if jobs is None else jobs)
    with Stages(quiet) as stage:
        stage(f"build {output}")
        speed = _Speed(stage)
        index = build_folder(inputs, output, options, overwrite=overwrite, progress=speed)
    megabytes = (index.train.bytes + index.heldout.bytes) / 1e6
    say(f"{megabytes:,.1f} MB of text at {megabytes / speed.seconds:,.1f} MB/s", quiet)
    if as_json:
        print_json(_facts(output, index))
    else:
        out.print(f"{output}: {index.tokens:,} tokens in {_counted(len(index.shards), 'shard')}, "
                  f"{index.train.bytes:,} bytes to train on, {index.heldout.bytes:,} held out")
    return 0


def info(
    folder: Annotated[Path, typer.Argument(
        metavar="FOLDER", help="A folder from sterna data build.")],
    verify: Annotated[bool, typer.Option(
        "--verify", help="Read all of it and compare it with the hashes in its index.")] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Show what a data folder holds.

    Checks sizes and headers of all files. With --verify every token is read, and the exit code is
    1 if anything was changed.

    Example: sterna data info data --verify
    """
    index = read_index(folder)
    wrong: list[str] = []
    if verify:
        with progress_bar(f"verify {folder}", quiet) as move:
            wrong = verify_folder(folder, move)
    if as_json:
        print_json(_facts(folder, index) | ({"wrong": wrong} if verify else {}))
    else:
        _show(index)
        if verify and not wrong:
            out.print("every token and the held-out text are as they were built")
    for line in wrong:
        say(f"sterna: {line}")
    return 1 if wrong else 0


class _Speed:
    """Shows the progress, speed and remaining time of a build."""

    def __init__(self, stage: Stages) -> None:
        self._stage, self._started, self._told = stage, time.monotonic(), 0.0

    @property
    def seconds(self) -> float:
        """Since the build began; never 0."""
        return max(time.monotonic() - self._started, 1e-3)

    def __call__(self, read: int, total: int, text: int) -> None:
        seconds = self.seconds
        if seconds - self._told < _TELL_S:
            return
        self._told = seconds
        done = f"{text / 1e6:,.0f} MB of text, {text / 1e6 / seconds:,.1f} MB/s"
        if 0 < read <= total:
            left = round(seconds / read * (total - read))
            done += f", {read / total:.0%}, {left // 60}:{left % 60:02d} left"
        self._stage.detail(done)


def _text(size: int, documents: int) -> str:
    return f"{size:,} bytes, {_counted(documents, 'document')}"


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _facts(folder: Path, index: Index) -> dict[str, Any]:
    """The facts about a data folder, for programs."""
    return {"folder": str(folder), "tokens": index.tokens,
            "bytes_per_token": index.train.bytes / index.tokens, "dtype": index.dtype.name,
            **{name: value for name, value in index.to_json().items() if name != "tokenizer"},
            "tokenizer": index.tokenizer.kind}


def _show(index: Index) -> None:
    split = index.split
    chosen = (f"the file {split['file']}" if "file" in split else
              f"about {split['fraction']:g} of the text, seed {split['seed']}")
    Table(None, ("part", "value"), [
        ("tokens", f"{index.tokens:,} {index.dtype.name} in "
                   f"{_counted(len(index.shards), 'shard')}"),
        ("tokenizer", f"{index.tokenizer.kind}, {index.tokenizer.vocab:,} tokens, "
                      f"{index.train.bytes / index.tokens:.3f} bytes per token"),
        ("to train on", _text(index.train.bytes, index.train.documents)),
        ("held out", f"{_text(index.heldout.bytes, index.heldout.documents)}: {chosen}"),
        ("separator", repr(index.separator) if index.tokenizer.end_of_text is None else
         f"token {index.tokenizer.end_of_text}; {index.separator!r} in the held-out text"),
        *((f"from {source['name']}", f"{_text(source['bytes'], source['documents'])}, "
                                     f"{_counted(source['files'], 'file')}")
          for source in index.sources),
        ("sha256", index.sha256)]).print()


for command in (build, info):
    DATA.command()(command)
