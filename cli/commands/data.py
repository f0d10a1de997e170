"""``sterna data``: texts on disk made into what training reads, and what such a folder holds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from sterna.cli.terminal.console import Stages, out, print_json, print_table, progress_bar, say
from sterna.cli.terminal.options import JsonOption, QuietOption, check_folder, choose
from sterna.model.shards.build import SEPARATOR, SHARD_TOKENS, BuildOptions
from sterna.model.shards.build import build as build_folder
from sterna.model.shards.files import Index, read_index
from sterna.model.shards.files import verify as verify_folder
from sterna.model.shards.inputs import DATASET, FORMATS, are_one_document, find_inputs
from sterna.model.shards.split import Split
from sterna.model.tokens.files import load_tokenizer
from sterna.model.tokens.tokenizer import ByteTokenizer, Tokenizer

__all__ = ["DATA", "build", "info"]

DATA = typer.Typer(
    name="data", rich_markup_mode=None, help="Make texts of any size ready for training.")

_TELL_S = 0.2


def build(
    inputs: Annotated[list[str], typer.Argument(
        metavar="INPUT...",
        help="Text files, JSON lines, Parquet files, any of the first two with .gz, folders of "
             "them; - for standard input; hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT for a "
             "data set of Hugging Face, by name or saved in a folder.")],
    output: Annotated[Path, typer.Option(
        "-o", "--output", help="Folder for shards, index and held-out text.")],
    tokenizer: Annotated[str, typer.Option(
        metavar="FILE|bytes", help="What makes the tokens.")] = ByteTokenizer.kind,
    heldout: Annotated[float | None, typer.Option(
        help="Part of the text to hold out, from 0 to 0.5: the end of long documents, and short "
             "ones that the hash of their text chooses. Default: 0.01.")] = None,
    heldout_file: Annotated[Path | None, typer.Option(
        help="A text to hold out instead of a part of the inputs.")] = None,
    seed: Annotated[int | None, typer.Option(
        help="Another one holds out other short documents. Default: 0.")] = None,
    kind: Annotated[str, typer.Option(
        "--format", help="What the inputs are: auto (by their names), text, jsonl or parquet.",
    )] = FORMATS[0],
    column: Annotated[str | None, typer.Option(
        help="Field of JSON lines, and column of tables, that holds the text. Default: text.",
    )] = None,
    separator: Annotated[str | None, typer.Option(
        help="Text between two documents; \\n is a line feed. Default: an empty line. With a "
             "tokenizer that has an end-of-text token: in the held-out text alone.")] = None,
    shard_tokens: Annotated[int, typer.Option(help="Tokens of a shard.")] = SHARD_TOKENS,
    jobs: Annotated[int | None, typer.Option(
        help="Processes that make tokens with a tokenizer. Default: 1.")] = None,
    overwrite: Annotated[bool, typer.Option(
        "--overwrite", help="Replace the data folder of that name.")] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Make texts into shards of tokens on disk, with a held-out text beside them.

    The texts may be larger than memory, and so may what comes of them. The same inputs give the
    same bytes.

    Example: sterna data build corpus/ more.jsonl -o data
    """
    for option, given in (("--heldout", heldout), ("--seed", seed)):
        if given is not None and heldout_file is not None:
            raise ValueError(f"{option} is for a part of the inputs: leave it out with "
                             f"--heldout-file")
    if jobs is not None and tokenizer == ByteTokenizer.kind:
        raise ValueError("--jobs is for --tokenizer FILE: bytes are tokens as they are read")
    if seed is not None and heldout == 0:
        raise ValueError("--seed chooses what is held out: leave it out with --heldout 0")
    choose("--format", kind, FORMATS)
    check_folder(output)
    _check_documents(inputs, kind, {"--seed": seed, "--separator": separator})
    options = BuildOptions(
        _tokenizer(tokenizer), Split(Split().fraction if heldout is None else heldout, seed or 0),
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
        out.print(f"{output}: {index.tokens:,} tokens in {_shards(index)}, {index.train.bytes:,} "
                  f"bytes to train on, {index.heldout.bytes:,} held out")
    return 0


def info(
    folder: Annotated[Path, typer.Argument(
        metavar="FOLDER", help="A folder that sterna data build wrote.")],
    verify: Annotated[bool, typer.Option(
        "--verify", help="Read all of it, and compare it with the hashes in its index.")] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Say what a data folder holds.

    Sizes and headers of all files are checked. With --verify every token is read, and the exit
    code is 1 if something was changed.

    Example: sterna data info data --verify
    """
    index = read_index(folder)
    wrong: list[str] = []
    if verify:
        display, move = progress_bar(f"verify {folder}", quiet)
        with display:
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


def _check_documents(inputs: list[str], kind: str, given: dict[str, object]) -> None:
    """Refuse options that would change nothing: of what files are where there are none, and of
    several documents where there is one."""
    if kind != FORMATS[0] and all(each.startswith(DATASET) for each in inputs):
        raise ValueError(f"--format says what files are, and all inputs are data sets ({DATASET}): "
                         f"leave it out")
    several = [option for option, value in given.items() if value is not None]
    if several and are_one_document(find_inputs(inputs, kind)):
        raise ValueError(f"{several[0]} is for several documents, and one text file is one: leave "
                         f"it out")


def _tokenizer(named: str) -> Tokenizer:
    return ByteTokenizer() if named == ByteTokenizer.kind else load_tokenizer(named)


class _Speed:
    """Tells how far a build is, how fast, and how long it will take."""

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


def _shards(index: Index) -> str:
    return _counted(len(index.shards), "shard")


def _text(size: int, documents: int) -> str:
    return f"{size:,} bytes, {_counted(documents, 'document')}"


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _facts(folder: Path, index: Index) -> dict[str, Any]:
    """What there is to say of a data folder, for programs."""
    return {"folder": str(folder), "tokens": index.tokens,
            "bytes_per_token": index.train.bytes / index.tokens, "dtype": index.dtype.name,
            **{name: value for name, value in index.to_json().items() if name != "tokenizer"},
            "tokenizer": index.tokenizer.kind}


def _show(index: Index) -> None:
    split = index.split
    chosen = (f"the file {split['file']}" if "file" in split else
              f"about {split['fraction']:g} of the text, seed {split['seed']}")
    print_table(None, ("part", "value"), [
        ("tokens", f"{index.tokens:,} {index.dtype.name} in {_shards(index)}"),
        ("tokenizer", f"{index.tokenizer.kind}, {index.tokenizer.vocab:,} tokens, "
                      f"{index.train.bytes / index.tokens:.3f} bytes per token"),
        ("to train on", _text(index.train.bytes, index.train.documents)),
        ("held out", f"{_text(index.heldout.bytes, index.heldout.documents)}: {chosen}"),
        ("separator", repr(index.separator) if index.tokenizer.end_of_text is None else
         f"token {index.tokenizer.end_of_text}; {index.separator!r} in the held-out text"),
        *((f"from {source['name']}", f"{_text(source['bytes'], source['documents'])}, "
                                     f"{_counted(source['files'], 'file')}")
          for source in index.sources),
        ("sha256", index.sha256)])


for command in (build, info):
    DATA.command()(command)
