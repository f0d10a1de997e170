"""A model under onnxruntime that writes text: the class for applications."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from sterna.export.forms.selftest import SelfTestError, check_checksum, check_self_test
from sterna.export.graph.file import OnnxFile, Source
from sterna.export.graph.metadata import GraphInfo, OnnxFileError
from sterna.export.native.ops import build_ops
from sterna.export.runtime.generate import Piece, Prompts, generate, prompt_list
from sterna.export.runtime.runtime import (
    OnnxModel,
    check_ops_form,
    has_two_bit_kernels,
    state_array,
    thread_count,
    two_bit_blocks,
)

__all__ = ["Session"]

_MAGIC = b"sterna state 1\n"


class Session:
    """One exported model, of any form, loaded and tested.

    Loading checks that the file is as Sterna wrote it, and runs its self-test: an exact form must
    give the integers of the reference.

    Parameters
    ----------
    source
        Path of the file, or the graph itself.
    threads
        Threads that one operator may use. A second one gains nothing up to about d = 512
        (benchmarks/threads.py, benchmarks/real_size.py).
    ops
        Library of native operators for the form ``exact``: a path; True builds it unless
        already built (:func:`sterna.export.native.ops.build_ops`); None for none.
    allow_slow
        Load a 2-bit form even if onnxruntime has no fast kernel for it.
    options
        Replaces the default options of onnxruntime; ``threads`` is then ignored.

    Raises
    ------
    OnnxFileError
        If a file cannot be read, was edited, was not made by Sterna, or onnxruntime cannot
        run it well; the message names the file and a form that it can run.
    SelfTestError
        If this onnxruntime gives other results than the file states, or none.
    OpsError
        If the library of operators cannot be built or used (`MissingCompilerError` without a
        compiler).
    ValueError
        If an argument has a wrong type or range, or the form does not support ``ops``. In every
        method a wrong type is a ``ValueError``, too.

    Examples
    --------
    >>> from sterna.export.forms.forms import build
    >>> from sterna.model.quantized import load_model
    >>> session = Session(build(load_model("tiny")))
    >>> session.complete(["The for"], tokens=10, temperature=0)
    ['mat string']
    """

    def __init__(
        self, source: Source, *, threads: int = 1, ops: str | Path | bool | None = None,
        allow_slow: bool = False, options: onnxruntime.SessionOptions | None = None,
    ) -> None:
        threads = thread_count(threads)
        file = OnnxFile.read(source)
        self.info = file.info
        """The metadata of the file: form, records, profile, model."""
        if ops:     # refuse before compiling
            check_ops_form(self.info.form, self.info.entry, file.name)
        library = _library(ops)
        with file.named():
            check_checksum(file)
            if not allow_slow and not all(
                    has_two_bit_kernels(block) for block in two_bit_blocks(file.proto)):
                raise OnnxFileError(
                    f"this onnxruntime has no 2-bit kernels for this processor, and would run "
                    f"the form {self.info.form} many times slower than float; export with --form "
                    "exact instead")
            self._graph = OnnxModel(file, threads=threads, ops=library, options=options)
            try:
                check_self_test(file.proto, self.info, self._graph)
            except SelfTestError as error:
                advice = (f"the library {library} is wrong: build it again, or go without it"
                          if library else "this onnxruntime computes something else")
                raise SelfTestError(f"{error}; {advice}") from error

    # One call ----------------------------------------------------------------------

    def start(self, batch: int = 1) -> np.ndarray:
        """The initial state, ``[layers, batch, d]``: zeros, int32 or float32."""
        return self._graph.start(batch)

    def step(self, tokens: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Advance every sequence by one token.

        ``tokens`` whole numbers ``[batch]``, ``state`` ``[layers, batch, d]``. Returns logits
        ``[batch, vocab]`` and the new state: int32, or float32 in real units for float forms.

        Raises
        ------
        ValueError
            If a shape is wrong, a token outside the vocabulary, or the state of another
            type or range.
        """
        return self._graph.step(tokens, state)

    def run(
        self, tokens: np.ndarray, state: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run tokens ``[batch, length]``; return logits ``[batch, length, vocab]`` and state.

        Raises
        ------
        ValueError
            As :meth:`step`.
        """
        return self._graph.run(tokens, state)

    def prefill(
        self, tokens: np.ndarray, state: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run prompts ``[batch, length]``; return the logits ``[batch, vocab]`` after the
        last token, and the state to continue from.

        Raises
        ------
        ValueError
            As :meth:`step`.
        """
        return self._graph.prefill(tokens, state)

    # Text --------------------------------------------------------------------------

    def generate(
        self, prompts: Prompts, *, tokens: int = 200, temperature: float = 0.7,
        top_k: int | None = None, top_p: float | None = None, stop: str | Sequence[str] = (),
        seed: int = 1,
    ) -> Iterator[Piece]:
        """Continue one or several prompts; see :func:`sterna.export.runtime.generate.generate`."""
        return generate(
            self, prompts, tokens=tokens, temperature=temperature, top_k=top_k, top_p=top_p,
            stop=stop, seed=seed)

    def complete(
        self, prompts: Prompts, *, tokens: int = 200, temperature: float = 0.7,
        top_k: int | None = None, top_p: float | None = None, stop: str | Sequence[str] = (),
        seed: int = 1,
    ) -> list[str]:
        """Continue every prompt and return the continuations."""
        asked = prompt_list(prompts)
        texts = [""] * len(asked)
        for piece in self.generate(
                asked, tokens=tokens, temperature=temperature, top_k=top_k, top_p=top_p,
                stop=stop, seed=seed):
            texts[piece.prompt] += piece.text
        return texts

    # States ------------------------------------------------------------------------

    def save_state(self, state: np.ndarray) -> bytes:
        """Pack a state, to continue later, elsewhere, or in another exact form.

        A line with the format name, a line of JSON (model, shape, type, SHA-256 of the values),
        then the values, little-endian, in the order of the axes.

        Raises
        ------
        ValueError
            If shape, type or range are not those of a state.
        """
        state = state_array(state, self.info)
        values = np.ascontiguousarray(state, dtype=f"<{_kind(self.info)}").tobytes()
        header = {
            "model_sha256": self.info.model_sha256, "type": self.info.form.value,
            "shape": list(state.shape), "sha256": hashlib.sha256(values).hexdigest()}
        return _MAGIC + json.dumps(header, sort_keys=True).encode() + b"\n" + values

    def load_state(self, data: bytes) -> np.ndarray:
        """Undo :meth:`save_state`.

        Raises
        ------
        ValueError
            If the bytes are not a state, are damaged, or are a state of another model or type.
        """
        if not isinstance(data, bytes):
            raise ValueError(f"a saved state must be bytes, got {type(data).__name__}")
        if not data.startswith(_MAGIC):
            raise ValueError("not a saved state of Sterna (its first line is missing)")
        line, _, values = data[len(_MAGIC):].partition(b"\n")
        try:
            header = json.loads(line)
            found, model = header["type"], header["model_sha256"]
            shape, digest = tuple(header["shape"]), header["sha256"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"the saved state is damaged (its header: {error})") from error
        if hashlib.sha256(values).hexdigest() != digest:
            raise ValueError("the saved state is damaged or cut off (its checksum differs)")
        if model != self.info.model_sha256:
            raise ValueError(
                f"the saved state belongs to another model: expected "
                f"{self.info.model_sha256[:12]}, got {str(model)[:12]} (the first digits of its "
                f"SHA-256)")
        if found != self.info.form.value:
            raise ValueError(
                f"the saved state is of the form {found}, from which the form {self.info.form} "
                f"cannot go on")
        kind = _kind(self.info)
        try:
            state = np.frombuffer(values, dtype=f"<{kind}").reshape(shape).astype(kind)
        except (ValueError, TypeError) as error:
            raise ValueError(f"the saved state is damaged ({error})") from error
        return state_array(state, self.info)


def _library(ops: str | Path | bool | None) -> Path | None:
    """The library of operators given by ``ops``, built if necessary."""
    if not ops:
        return None
    if not isinstance(ops, (str, Path, bool)):
        raise ValueError(f"ops must be the path of a library, True or None, got {ops!r}")
    return build_ops() if ops is True else Path(ops)


def _kind(info: GraphInfo) -> str:
    return "i4" if info.exact else "f4"
