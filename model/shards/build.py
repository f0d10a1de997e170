"""Build a data folder from texts of any size."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from sterna.model.checks import check_whole
from sterna.model.files import write_atomically
from sterna.model.folder import new_folder
from sterna.model.processes import deaf_to_ctrl_c, end_with_parent
from sterna.model.shards.files import (
    HELDOUT,
    INDEX,
    Index,
    ShardError,
    ShardWriter,
    read_index,
    token_dtype,
)
from sterna.model.shards.inputs import FORMATS, STDIN, Input, Meter, are_one_document, find_inputs
from sterna.model.shards.split import Piece, Sides, Split, batches
from sterna.model.tokens.tokenizer import ByteTokenizer, Tokenizer

__all__ = ["SEPARATOR", "SHARD_TOKENS", "BuildOptions", "build", "encode_batches"]

SEPARATOR = "\n\n"
"""Default text between two documents: an empty line."""

SHARD_TOKENS = 1 << 27
"""Default number of tokens in a shard: 256 MiB of uint16."""

_COLUMN = "text"
_MOST_JOBS = 256        # each has some text waiting in memory

Progress = Callable[[int, int, int], None]


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How a data folder is built."""

    tokenizer: Tokenizer = field(default_factory=ByteTokenizer)
    split: Split = field(default_factory=Split)     # rule that holds out part of the documents
    heldout_file: Path | None = None    # a separate text to hold out instead
    kind: str = FORMATS[0]              # kind of the inputs
    column: str | None = None           # field or column of texts in rows; None for ``text``
    # Between two documents, encoded by itself. In the train tokens a tokenizer's end-of-document
    # token replaces it; the held-out text keeps it.
    separator: str = SEPARATOR
    shard_tokens: int = SHARD_TOKENS    # of every shard but the last
    # Approximate amount of text read and encoded at a time, and number of processes: neither
    # affects the result.
    block_bytes: int = 1 << 20
    jobs: int = 1

    def __post_init__(self) -> None:
        check_whole("shard_tokens", self.shard_tokens, 1)
        check_whole("block_bytes", self.block_bytes, 1)
        check_whole("jobs", self.jobs, 1, _MOST_JOBS)
        try:
            self.separator.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"separator must be UTF-8 text, got {self.separator!r}") from error
        if self.kind not in FORMATS:
            raise ValueError(f"kind must be one of {', '.join(FORMATS)}, got {self.kind!r}")


def build(
    inputs: Sequence[str], folder: str | Path, options: BuildOptions, *, overwrite: bool = False,
    progress: Progress = lambda read, total, text: None,
) -> Index:
    """Write the tokens of all documents, and the held-out text, as a data folder, creating its
    parents.

    ``inputs`` are files, folders, ``-`` for standard input and ``hf:NAME[:CONFIG][:SPLIT]`` for a
    data set. The folder appears when complete; until then an existing one, which must be a data
    folder and requires ``overwrite``, remains. The same inputs and options give the same bytes.
    ``progress`` is called from time to time with bytes read of files, bytes of all files (0 if
    unknown) and bytes of text.

    Raises ValueError if an input cannot be read as its kind, or nothing is left to train on or to
    hold out; OSError if the folder cannot be written.
    """
    folder = Path(folder)
    found = find_inputs(inputs, options.kind)
    _check_inputs(found, options)
    _check_target(folder, overwrite, inputs)
    try:
        with new_folder(folder) as new:
            return _build(found, new, options, progress)
    except OSError as error:
        if error.errno is None:
            raise
        # Name the target folder, not the temporary one.
        reason = f"cannot write ({error.strerror or error})"
        raise OSError(error.errno, reason, str(folder)) from error


def _check_inputs(inputs: list[Input], options: BuildOptions) -> None:
    """Refuse inputs that would train on the held-out text, and a column for inputs without one."""
    files = [file for each in inputs for file in each.files]
    if options.column is not None and all(file.kind == "text" for file in files):
        raise ValueError("--column is for JSON lines, Parquet and data sets, and all inputs are "
                         "text: leave it out, or say what they are with --format")
    if options.heldout_file is not None:
        wanted = options.heldout_file.resolve()
        for file in files:
            if Path(file.path).resolve() == wanted:
                raise ValueError(f"{options.heldout_file} is to be held out, and is also among "
                                 f"the inputs: it would be trained on")


def _check_target(folder: Path, overwrite: bool, inputs: Sequence[str] = ()) -> None:
    """Refuse a folder that must not be written, before any work."""
    for named in inputs:
        if named != STDIN and Path(named).is_dir() and (
                folder.resolve().is_relative_to(Path(named).resolve())):
            raise ValueError(f"{folder} is within the input {named}, and would be read by the next "
                             f"build: give a folder elsewhere")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give the name of a folder to write")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not overwrite:
        raise ValueError(f"{folder} already exists: --overwrite replaces it")
    try:
        index = read_index(folder)
    except ShardError as error:
        raise ValueError(f"{folder} is no whole data folder ({error}), so --overwrite does not "
                         f"replace it: remove it, or give another") from error
    known = {INDEX, HELDOUT, *(shard.file for shard in index.shards)}
    strange = sorted({path.name for path in folder.iterdir()} - known)
    if strange:
        raise ValueError(f"{folder} also holds {strange[0]}, which Sterna did not write: move it "
                         f"away first")


def _build(
    inputs: list[Input], new: Path, options: BuildOptions, progress: Progress,
) -> Index:
    meter, writer = Meter(), ShardWriter(
        new, token_dtype(options.tokenizer.vocab), options.shard_tokens)
    total = sum(file.size for each in inputs for file in each.files)
    split = _split(inputs, options)
    with writer, (new / HELDOUT).open("wb") as heldout:
        sides = Sides(options.tokenizer, split, options.separator, heldout, options.block_bytes)
        pieces = sides.divide(inputs, options.column or _COLUMN, meter, new)
        for tokens in encode_batches(
                options.tokenizer, batches(pieces, options.block_bytes), options.jobs):
            writer.write(tokens)
            progress(meter.read_bytes, total, sides.train.bytes + sides.heldout.bytes)
        if options.heldout_file is not None:
            sides.hold_out(options.heldout_file, new)
        heldout.flush()
        os.fsync(heldout.fileno())
    _check_sides(sides, split, options)
    said = split.to_json() if options.heldout_file is None else {"file": options.heldout_file.name}
    index = Index(
        options.tokenizer, options.separator, said, sides.train.part(writer.sha256),
        sides.heldout.part(sides.heldout_digest.hexdigest()), tuple(writer.shards),
        tuple(sides.sources))
    write_atomically(new / INDEX, json.dumps(index.to_json(), indent=1) + "\n")
    return index


def _split(inputs: list[Input], options: BuildOptions) -> Split:
    if options.heldout_file is not None:
        return Split(0.0, options.split.seed)
    if are_one_document(inputs):    # there is no other to choose
        return Split(options.split.fraction, options.split.seed, 1)
    return options.split


def _check_sides(sides: Sides, split: Split, options: BuildOptions) -> None:
    if not sides.train.bytes:
        there = "all documents are held out" if sides.heldout.bytes else "the inputs hold no text"
        raise ValueError(f"there is nothing to train on: {there}")
    if not sides.heldout.bytes and (split.fraction or options.heldout_file):
        documents = sides.train.documents
        raise ValueError(
            f"{options.heldout_file}: the text to hold out is empty" if options.heldout_file else
            f"nothing of {documents:,} document{'s' if documents > 1 else ''} came to be held out "
            f"with --heldout {split.fraction:g}: take a larger part, or name a text of your own "
            f"with --heldout-file")


_AHEAD = 2      # batches waiting for each process

_tokenizer: Tokenizer | None = None


def _encode_batch(tokenizer: Tokenizer, batch: list[Piece]) -> np.ndarray:
    """The tokens of pieces, each encoded by itself, in the type of the shards."""
    dtype, tokens = token_dtype(tokenizer.vocab), []
    for name, text in batch:
        try:
            found = [tokenizer.end_of_text] if text is None else tokenizer.encode(text)
            tokens.append(np.asarray(found).astype(dtype))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return np.concatenate(tokens)


def encode_batches(
    tokenizer: Tokenizer, waiting: Iterable[list[Piece]], jobs: int,
) -> Iterator[np.ndarray]:
    """The tokens of every batch, in order, made by ``jobs`` processes, each with at most two
    batches waiting."""
    if jobs == 1:
        for batch in waiting:
            yield _encode_batch(tokenizer, batch)
        return
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin, (tokenizer,))
    rest = iter(waiting)
    try:
        first = list(islice(rest, jobs))    # interruptible: a pipe may block here
        with deaf_to_ctrl_c():      # all processes start here, with the first batches
            running = deque(pool.submit(_encode, batch) for batch in first)
        while running:
            running += [pool.submit(_encode, batch)
                        for batch in islice(rest, jobs * _AHEAD - len(running))]
            yield running.popleft().result()
    except BrokenProcessPool as error:
        raise OSError("a process that encoded was ended from outside, perhaps for lack of "
                      "memory") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(tokenizer: Tokenizer) -> None:
    global _tokenizer
    _tokenizer = tokenizer
    end_with_parent()


def _encode(batch: list[Piece]) -> np.ndarray:
    assert _tokenizer is not None
    return _encode_batch(_tokenizer, batch)
