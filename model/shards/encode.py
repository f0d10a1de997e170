"""Batches of text made into tokens, in this process or in several."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice

import numpy as np

from sterna.model.processes import deaf_to_ctrl_c, end_with_parent
from sterna.model.shards.files import token_dtype
from sterna.model.shards.pieces import Piece
from sterna.model.tokens.tokenizer import Tokenizer

__all__ = ["encode_batch", "encode_batches"]

_AHEAD = 2      # batches that wait for each process

_tokenizer: Tokenizer | None = None


def encode_batch(tokenizer: Tokenizer, batch: list[Piece]) -> np.ndarray:
    """The tokens of pieces, each encoded by itself, in the type that shards have.

    Raises
    ------
    ValueError
        If the tokenizer has no token for something; the document is named.
    """
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
    """The tokens of every batch, in order, made by ``jobs`` processes.

    At most two batches for each process are asked for ahead of the one that is given out.

    Raises
    ------
    ValueError
        As :func:`encode_batch` does.
    OSError
        If a process was ended from outside.
    """
    if jobs == 1:
        for batch in waiting:
            yield encode_batch(tokenizer, batch)
        return
    pool = ProcessPoolExecutor(
        jobs, multiprocessing.get_context("spawn"), _begin, (tokenizer,))
    rest = iter(waiting)
    try:
        first = list(islice(rest, jobs))    # heeds Ctrl-C: a pipe may keep us waiting
        with deaf_to_ctrl_c():      # every process starts here, with the first batches
            running = deque(_submit(pool, first))
        while running:
            running += _submit(pool, islice(rest, jobs * _AHEAD - len(running)))
            yield running.popleft().result()
    except BrokenProcessPool as error:
        raise OSError("a process that encoded was ended from outside, perhaps for lack of "
                      "memory") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _submit(
    pool: ProcessPoolExecutor, batches: Iterable[list[Piece]],
) -> list[Future[np.ndarray]]:
    return [pool.submit(_encode, batch) for batch in batches]


def _begin(tokenizer: Tokenizer) -> None:
    global _tokenizer
    _tokenizer = tokenizer
    end_with_parent()


def _encode(batch: list[Piece]) -> np.ndarray:
    assert _tokenizer is not None
    return encode_batch(_tokenizer, batch)
