"""Long runs of a core: its Verilog as a shared library with a clock loop in C++."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sterna.hw.core.request import Request
from sterna.hw.oldcore.control import ControlSignature, prompt_layout, token_layout
from sterna.hw.oldcore.plan.core_params import CoreParams
from sterna.hw.oldcore.plan.core_units import CoreUnits
from sterna.hw.oldcore.plan.image import CoreImage, weight_request_layout
from sterna.hw.oldcore.plan.request import check_requests
from sterna.hw.parts.bits import signed_elements
from sterna.hw.testbench.job import SimulationError
from sterna.sim.bench.cpp_build import build_library, load_library
from sterna.sim.bench.waves import check_waves

__all__ = ["CHUNK", "CoreRun", "CppCore"]


class _Stream(enum.IntEnum):
    """A stream of a core whose words were taken."""

    PROMPTS = 0
    TOKENS = 1
    LOGITS = 2


@dataclass(frozen=True, slots=True)
class CoreRun:
    """What came out of a core. Every list has an entry per sequence; cycle 0 is the first."""

    tokens: list[np.ndarray]  # generated tokens, int64 ``[n]``
    lasts: list[np.ndarray]  # whether each was the last of its generation, bool ``[n]``
    token_cycles: list[np.ndarray]  # cycle in which each was taken, int64 ``[n]``
    # int64 ``[vectors, vocab]``; no vectors if the core has no such port
    logits: list[np.ndarray] = field(repr=False)
    # cycle in which the last word of each vector was taken, int64 ``[vectors]``
    logit_cycles: list[np.ndarray]
    # cycle in which each token of the prompts was taken, int64 ``[m]``
    prompt_cycles: list[np.ndarray]
    cycles: int  # cycles until everything was idle
    busy_cycles: int  # how far the core's own counter went


_HARNESS = Path(__file__).with_name("harness.cpp")
_RUNNING, _DONE = 0, 1
CHUNK = 50_000
"""Cycles between two reports of tokens, and between two looks for Ctrl-C."""
_BLOCK = 8192
"""Words of logits unpacked at a time: unpacking takes many times their size."""


class CppCore:
    """A core, compiled; the first time in a folder this takes from seconds to a minute.

    ``sources`` are the Verilog of a core, contents of its
    memories beside it, ``image`` is what it was made from. A core with ``external_weights`` gets
    the weights from there. ``work`` is the folder for the library; one that holds it already is
    not built again. A wave file is complete when the core is deleted.
    """

    def __init__(
        self, sources: Sequence[Path], module: str, image: CoreImage, work: Path, *,
        waves: Path | None = None,
    ) -> None:
        self.params = params = image.params
        self._module = module
        self._library = _load_core(build_library(
            sources, module, _ports(params), work, harness=_HARNESS,
            memories=[(f"{module}__mlgru", "state")], waves=check_waves(waves)))
        error = ctypes.create_string_buffer(500)
        with contextlib.chdir(sources[-1].parent):      # where it reads its memories
            core = self._library.core_new(
                params.sequences, params.logits, params.external_weights, error, len(error))
        if not core:
            raise SimulationError(f"{module} does not fit its image: {error.value.decode()}")
        self._core = ctypes.c_void_p(core)
        weakref.finalize(self, self._library.core_delete, self._core)
        if waves:
            self._library.core_waves(self._core, str(waves.resolve()).encode())
        if params.external_weights:
            size = self._library.core_weight_bytes(self._core)
            words = b"".join(word.to_bytes(size, "little") for word in image.weights)
            layout = weight_request_layout(image)
            self._library.core_weights(
                self._core, layout["count"].offset, words, len(words))

    def run(
        self, requests: Sequence[Sequence[Request]], *,
        on_tokens: Callable[[int, list[int]], None] = lambda sequence, tokens: None,
    ) -> CoreRun:
        """Reset the core and run requests, a list for each sequence, until everything is idle.

        Those of a sequence follow each other without a pause. ``on_tokens`` is given the number of
        a sequence and what it has just written, every :data:`CHUNK` cycles. ValueError if the
        requests do not fit the core, SimulationError if it hangs, or gives something after the end.
        """
        params, library, core = self.params, self._library, self._core
        check_requests(params, requests)
        library.core_begin(core, self._patience)
        self._send(requests)
        status, shown = _RUNNING, [0] * params.sequences
        while status == _RUNNING:
            status = library.core_run(core, CHUNK)
            if status not in (_RUNNING, _DONE):
                raise SimulationError(
                    f"{self._module}: {library.core_error(core).decode()}")
            for sequence, first in enumerate(shown):
                fresh = self._tokens(sequence, first)[0].tolist()
                shown[sequence] += len(fresh)
                if fresh:
                    on_tokens(sequence, fresh)
        return self._results()

    def states(self, sequence: int = 0) -> np.ndarray:
        """Return the recurrent state of a sequence; int64 ``[layers, d]``.

        Meaningful once the sequence has run a token.
        """
        mlgru, d = CoreUnits(self.params).mlgru, self.params.config.d
        count, size = ctypes.c_size_t(), ctypes.c_size_t()
        data = self._library.core_memory(
            self._core, f"{self._module}.mlgru".encode(), b"state", ctypes.byref(count),
            ctypes.byref(size))
        if not data:
            raise SimulationError(self._library.core_error(self._core).decode())
        if count.value != mlgru.memory_words:
            raise SimulationError(
                f"the state memory must have {mlgru.memory_words} words, has {count.value}")
        words = np.frombuffer(
            ctypes.string_at(data, count.value * size.value), dtype=np.uint8)
        words = words.reshape(count.value, -1)[sequence * mlgru.words:][:mlgru.words]
        elements = _elements(words, mlgru.lanes, self.params.profile.h.bits)
        return elements.reshape(mlgru.layers, mlgru.channels)[:, :d]

    @property
    def _patience(self) -> int:
        """Cycles without a transfer that count as a hang: many tokens' worth."""
        return 16 * self.params.sequences * (self.params.mac_cycles + 10_000)

    def _send(self, requests: Sequence[Sequence[Request]]) -> None:
        layout = prompt_layout(self.params)
        for sequence, queue in enumerate(requests):
            for request in queue:
                words = np.array(request.prompt, dtype=np.uint64)
                words |= np.array(request.predictions, dtype=np.uint64) << np.uint64(
                    layout["predict"].offset)
                words[0] |= np.uint64(request.start << layout["start"].offset)
                self._library.core_request(
                    self._core, sequence, request.tokens, request.stop_token is not None,
                    request.stop_token or 0, request.beta, request.seed,
                    words.ctypes.data_as(ctypes.POINTER(ctypes.c_uint64)), len(words))

    def _taken(self, stream: _Stream, sequence: int) -> tuple[np.ndarray, np.ndarray]:
        """Words of a stream, uint8 ``[n, bytes]``, and their cycles, int64 ``[n]``."""
        words, cycles, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        count = self._library.core_taken(
            self._core, stream, sequence, ctypes.byref(words), ctypes.byref(cycles),
            ctypes.byref(size))
        if count == 0:
            return np.zeros((0, size.value), dtype=np.uint8), np.zeros(0, dtype=np.int64)
        # No copies: these stay good until the core runs again.
        return (
            _view(words, ctypes.c_uint8, count * size.value).reshape(count, -1)
            if size.value else np.zeros((count, 0), dtype=np.uint8),
            _view(cycles, ctypes.c_int64, count).copy())

    def _tokens(self, sequence: int, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
        words, _ = self._taken(_Stream.TOKENS, sequence)
        layout = token_layout(self.params)
        payloads = _numbers(words[first:])
        token = layout["token"]
        return ((payloads >> token.offset) & ((1 << token.width) - 1),
                (payloads >> layout["last"].offset) & 1 != 0)

    def _logits(self, sequence: int) -> tuple[np.ndarray, np.ndarray]:
        """Whole vectors of logits, and the cycles of their last words."""
        params, vocab = self.params, self.params.config.vocab
        bits, length = params.profile.logit.bits, params.vocab_words
        words, cycles = self._taken(_Stream.LOGITS, sequence)
        last = params.rows * bits
        flags = (words[:, last // 8] >> (last % 8)) & 1
        wrong = np.flatnonzero(flags != (np.arange(1, len(words) + 1) % length == 0))
        if wrong.size:
            raise SimulationError(
                f"{self._module}: vectors of logits have {length} words, but word {wrong[0]} "
                f"of sequence {sequence} has last = {flags[wrong[0]]}")
        count = len(words) // length
        logits = np.zeros((count, vocab), dtype=np.int64)
        step = max(_BLOCK // length, 1)
        for first in range(0, count, step):
            block = words[first * length:min(first + step, count) * length]
            elements = _elements(block, params.rows, bits)
            logits[first:first + step] = elements.reshape(-1, length * params.rows)[:, :vocab]
        return logits, cycles[length - 1::length]

    def _results(self) -> CoreRun:
        sequences = range(self.params.sequences)
        tokens = [self._tokens(sequence) for sequence in sequences]
        none = (np.zeros((0, self.params.config.vocab), dtype=np.int64),
                np.zeros(0, dtype=np.int64))
        logits = [
            self._logits(sequence) if self.params.logits else none for sequence in sequences]

        def cycles(stream: _Stream) -> list[np.ndarray]:
            return [self._taken(stream, sequence)[1] for sequence in sequences]

        return CoreRun(
            [each[0] for each in tokens], [each[1] for each in tokens],
            cycles(_Stream.TOKENS), [each[0] for each in logits],
            [each[1] for each in logits], cycles(_Stream.PROMPTS),
            self._library.core_cycle(self._core), self._library.core_busy_cycles(self._core))


def _ports(params: CoreParams) -> list[str]:
    """Names of the ports that the clock loop uses."""
    streams = ["weight_requests", "weights"] if params.external_weights else []
    names = ["clk", "rst", "go", "busy", "cycles"]
    for sequence in range(params.sequences):
        streams += [f"prompts__{sequence}", f"tokens__{sequence}"]
        streams += [f"logits__{sequence}"] if params.logits else []
        names += [f"control__{sequence}__{part}"
                  for part in ControlSignature(params).members]
    return names + [f"{stream}__{part}" for stream in streams
                    for part in ("payload", "valid", "ready")]


def _view(address: ctypes.c_void_p, kind: type, count: int) -> np.ndarray:
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(kind)), (count,))


def _numbers(words: np.ndarray) -> np.ndarray:
    """Words of at most 8 bytes as int64."""
    padded = np.zeros((len(words), 8), dtype=np.uint8)
    padded[:, :words.shape[1]] = words
    return padded.view("<i8")[:, 0]


def _elements(words: np.ndarray, count: int, element_bits: int) -> np.ndarray:
    """Signed elements of words ``[n, bytes]`` from the lowest bit on; int64 ``[n, count]``."""
    bits = np.unpackbits(words, axis=1, bitorder="little")
    return signed_elements(bits[:, :count * element_bits], element_bits)


def _load_core(path: Path) -> ctypes.CDLL:
    """Load a library and declare its functions, ``core_...`` at the end of ``harness.cpp``."""
    core, size, word = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64
    number, text = ctypes.c_uint, ctypes.c_char_p
    words = ctypes.POINTER(word)
    return load_library(path, "core", (
        ("new", core, (number, ctypes.c_int, ctypes.c_int, text, size)),
        ("delete", None, (core,)),
        ("error", text, (core,)),
        ("waves", None, (core, text)),
        ("begin", None, (core, word)),
        ("request", None, (core, number, word, ctypes.c_int, word, word, word, words, size)),
        ("weight_bytes", size, (core,)),
        ("weights", None, (core, number, text, size)),
        ("run", ctypes.c_int, (core, word)),
        ("cycle", word, (core,)),
        ("busy_cycles", word, (core,)),
        ("taken", size, (core, ctypes.c_int, number, core, core, core)),
        ("memory", core, (core, text, text, core, core)),
    ))
