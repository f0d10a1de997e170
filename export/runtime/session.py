"""A model under onnxruntime, ready to write text: the class for applications."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from sterna.export.forms.selftest import SelfTestError, check_checksum, check_self_test
from sterna.export.forms.writer import sequence_path
from sterna.export.graph.metadata import GraphInfo, GraphKind, OnnxFileError
from sterna.export.native.build import build_ops
from sterna.export.runtime.generate import Piece, generate
from sterna.export.runtime.runtime import OnnxSequence, OnnxStep, Source, read_graph
from sterna.export.runtime.sessions import has_two_bit_kernels, two_bit_blocks
from sterna.export.runtime.states import pack_state, unpack_state

__all__ = ["Session"]

_CHUNK = 256        # tokens of a prompt in one call: memory grows with them


class Session:
    """One exported model, of any form, loaded and tested.

    Loading checks that the file is as Sterna wrote it, runs the test that it carries and
    compares: an exact form must give the integers of the reference.

    Parameters
    ----------
    source
        Path of a step graph (``NAME.onnx``), or the graph itself.
    sequence
        The sequence graph of the same model and form, used for prompts. By default the
        file ``NAME.sequence.onnx`` beside ``source``, if there is one; without it, prompts
        go through the step graph.
    threads
        Threads that one operator may use. A second one gains nothing up to about d = 512
        (benchmarks/threads.py).
    ops
        Library of native operators for the form ``exact``: a path; True builds it unless it
        has been built before (:func:`sterna.export.native.build.build_ops`); None for none.
    allow_slow
        Load a 2-bit form even where onnxruntime has no fast kernel for it.
    options
        onnxruntime's own options in place of ours; ``threads`` then has no meaning.

    Raises
    ------
    OnnxFileError
        If a file cannot be read, was edited, was not made by Sterna, or onnxruntime cannot
        run it well; the message names the file and a form that it can run.
    SelfTestError
        If this onnxruntime computes something else than the file says.
    ValueError
        If ``threads`` is not from 1 to 256 or ``ops`` does not go with the form.

    Examples
    --------
    >>> from sterna.export.forms.forms import build
    >>> from sterna.export.graph.metadata import GraphKind
    >>> from sterna.model.quantized import load_model
    >>> session = Session(build(load_model("tiny"), "exact", GraphKind.STEP))
    >>> session.complete(["The for"], tokens=10, temperature=0)
    ['m formatti']
    """

    def __init__(
        self, source: Source, *, sequence: Source | None = None, threads: int = 1,
        ops: str | Path | bool | None = None, allow_slow: bool = False,
        options: onnxruntime.SessionOptions | None = None,
    ) -> None:
        self._ops = build_ops() if ops is True else Path(ops) if ops else None
        self._allow_slow = allow_slow
        self._threads = threads
        self._options = options
        step = self._open(source, GraphKind.STEP)
        assert isinstance(step, OnnxStep)
        self._step = step
        self.info: GraphInfo = step.info
        """What the file says about itself: form, shape, profile, model."""
        if sequence is None and not isinstance(source, onnx.ModelProto):
            beside = sequence_path(source)
            sequence = beside if beside.exists() else None
        self._sequence: OnnxSequence | None = None
        if sequence is not None:
            opened = self._open(sequence, GraphKind.SEQUENCE)
            assert isinstance(opened, OnnxSequence)
            if (opened.info.model_sha256, opened.info.form) != (
                    self.info.model_sha256, self.info.form):
                raise OnnxFileError(
                    f"{_name(sequence)}: a sequence graph of another model or form than "
                    f"{_name(source)}; export both again, or remove it")
            self._sequence = opened

    def _open(self, source: Source, kind: GraphKind) -> OnnxStep | OnnxSequence:
        proto, info = read_graph(source)
        name = _name(source)
        if self._ops is not None and info.form != "exact":
            raise ValueError(
                f"{name}: the library of operators goes with the form exact, got {info.form}")
        try:
            check_checksum(proto)
            if not self._allow_slow and not all(
                    has_two_bit_kernels(block) for block in two_bit_blocks(proto)):
                raise OnnxFileError(
                    f"this onnxruntime has no 2-bit kernels for this processor, and would run "
                    f"the form {info.form} many times slower than float; export with --form "
                    "exact instead")
            graph = (OnnxStep if kind is GraphKind.STEP else OnnxSequence)(
                proto, threads=self._threads, ops=self._ops, options=self._options, name=name)
            check_self_test(proto, info, graph.run)
        except SelfTestError as error:
            raise SelfTestError(
                f"{name}: {error}; {self._advice(info)}") from error
        except OnnxFileError as error:
            known = str(error).startswith(f"{name}: ")
            raise OnnxFileError(str(error) if known else f"{name}: {error}") from error
        return graph

    def _advice(self, info: GraphInfo) -> str:
        if self._ops is not None:
            return f"the library {self._ops} is wrong: build it again, or go without it"
        return ("this onnxruntime computes it otherwise"
                + ("" if info.form in ("exact", "traced")
                   else "; export with --form exact instead"))

    # One call ----------------------------------------------------------------------

    def start(self, batch: int = 1) -> np.ndarray:
        """The state before any token, ``[layers, batch, d]``: zeros, int32 or float32."""
        return self._step.start(batch)

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
        return self._step.step(tokens, state)

    def run(
        self, tokens: np.ndarray, state: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run tokens ``[batch, length]``; return logits ``[batch, length, vocab]`` and state.

        Raises
        ------
        ValueError
            As :meth:`step`.
        """
        _check_row(tokens)
        state = self.start(len(tokens)) if state is None else state
        rows = []
        for at in range(0, max(1, tokens.shape[1]), _CHUNK):
            logits, state = self._row(tokens[:, at:at + _CHUNK], state)
            rows.append(logits)
        return np.concatenate(rows, axis=1), state

    def _row(self, tokens: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (self._sequence or self._step).run(tokens, state)

    def prefill(
        self, tokens: np.ndarray, state: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run prompts ``[batch, length]``; return the logits ``[batch, vocab]`` after the
        last token, and the state to go on from.

        Raises
        ------
        ValueError
            As :meth:`step`.
        """
        _check_row(tokens)
        state = self.start(len(tokens)) if state is None else state
        for at in range(0, max(1, tokens.shape[1]), _CHUNK):
            logits, state = self._row(tokens[:, at:at + _CHUNK], state)
        return logits[:, -1], state

    # Text --------------------------------------------------------------------------

    def generate(
        self, prompts: str | Sequence[str], *, tokens: int = 200, temperature: float = 0.7,
        top_k: int | None = None, top_p: float | None = None, stop: Sequence[str] = (),
        seed: int = 1,
    ) -> Iterator[Piece]:
        """Continue one or several prompts; see :func:`sterna.export.runtime.generate.generate`."""
        return generate(
            self, prompts, tokens=tokens, temperature=temperature, top_k=top_k, top_p=top_p,
            stop=stop, seed=seed)

    def complete(
        self, prompts: str | Sequence[str], *, tokens: int = 200, temperature: float = 0.7,
        top_k: int | None = None, top_p: float | None = None, stop: Sequence[str] = (),
        seed: int = 1,
    ) -> list[str]:
        """Continue every prompt and return the texts that follow them."""
        prompts = [prompts] if isinstance(prompts, str) else prompts
        texts = [""] * len(prompts)
        for piece in self.generate(
                prompts, tokens=tokens, temperature=temperature, top_k=top_k, top_p=top_p,
                stop=stop, seed=seed):
            texts[piece.prompt] += piece.text
        return texts

    # States ------------------------------------------------------------------------

    def save_state(self, state: np.ndarray) -> bytes:
        """Pack a state, to go on from later, elsewhere, or in another exact form."""
        return pack_state(state, self.info)

    def load_state(self, data: bytes) -> np.ndarray:
        """Undo :meth:`save_state`.

        Raises
        ------
        ValueError
            If the bytes are no state, damaged, or a state of another model.
        """
        return unpack_state(data, self.info)


def _check_row(tokens: np.ndarray) -> None:
    if np.ndim(tokens) != 2:
        raise ValueError(f"tokens must be [batch, length], got {list(np.shape(tokens))}")


def _name(source: Source) -> str:
    return "the ONNX graph" if isinstance(source, onnx.ModelProto) else str(source)
