"""Long runs of a core: its Verilog as a shared library with a clock loop in C++."""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from sterna.hw.core.control import ControlSignature, prompt_layout, token_layout
from sterna.hw.core.plan.core_params import CoreParams
from sterna.hw.core.plan.core_units import CoreUnits
from sterna.hw.core.plan.image import CoreImage, weight_request_layout
from sterna.hw.core.plan.request import Request, check_requests
from sterna.hw.parts.bits import signed_elements
from sterna.hw.testbench.job import SimulationError
from sterna.model.checks import check_whole
from sterna.sim.bench.cpp_build import build_library
from sterna.sim.bench.waves import check_waves
from sterna.sim.core.harness import HARNESS, load_core
from sterna.sim.core.run import CoreProgress, CoreRun, CoreStream, Hold

__all__ = ["CppCore"]

_RUNNING, _DONE = 0, 1
_MOST_CYCLES = 1 << 62
"""Two of them still fit the counters of the clock loop."""
_BLOCK = 8192
"""Words of logits unpacked at a time: unpacking takes many times their size."""


class CppCore:
    """A core, compiled; the first time in a folder this takes from seconds to a minute.

    Parameters
    ----------
    sources
        The Verilog of a :class:`~sterna.hw.core.core.MatMulFreeCore`, contents of its memories
        beside it.
    module
        Name of its module.
    image
        What it was made from. A core with ``external_weights`` gets the weights from here.
    work
        Folder for the library; one that holds it already is not built again.
    waves
        A wave file to write, ``.fst`` or ``.vcd``; None for none. It is complete when the core is
        deleted.

    Raises
    ------
    MissingToolError
        If Verilator or a system tool it needs is not installed.
    SimulationError
        If it does not compile, or the Verilog is of another core.
    ValueError
        If the path of ``work`` or of Python has a space: make cannot build there.
    """

    def __init__(
        self, sources: Sequence[Path], module: str, image: CoreImage, work: Path, *,
        waves: Path | None = None,
    ) -> None:
        self.params = params = image.params
        self._module = module
        self._library = load_core(build_library(
            sources, module, _ports(params), work, harness=HARNESS,
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
        self, requests: Sequence[Sequence[Request]], *, reset: bool = True,
        pauses_seed: int | None = None, holds: Sequence[Hold] = (),
        abandon_at: int | None = None, patience: int | None = None,
        progress: Callable[[CoreProgress], None] | None = None, chunk: int = 50_000,
    ) -> CoreRun:
        """Run requests, a list for each sequence, until everything is idle.

        Parameters
        ----------
        requests
            What to run; those of a sequence follow each other without a pause.
        reset
            Whether the core is reset first; otherwise it goes on from the run before.
        pauses_seed
            Seed of random pauses at every end of every stream, at least 1; None for none.
        holds
            Long pauses.
        abandon_at
            Cycle after which to stop wherever the core is; the next run must reset it.
        patience
            Cycles without a transfer that count as a hang; None takes many tokens' worth.
        progress
            Called after every chunk, and at the end.
        chunk
            Cycles between two calls of ``progress``, and between two looks for Ctrl-C.

        Raises
        ------
        ValueError
            If the requests do not fit the core, a number is out of range, or a hold is on a
            stream that the core does not have.
        SimulationError
            If it hangs, or breaks the rules of a stream.
        """
        params, library, core = self.params, self._library, self._core
        check_requests(params, requests)
        if pauses_seed is not None:
            check_whole("pauses_seed", pauses_seed, 1, (1 << 64) - 1)
        for name, number, low in (("abandon_at", abandon_at, 0), ("patience", patience, 1)):
            if number is not None:
                check_whole(name, number, low, _MOST_CYCLES)
        check_whole("chunk", chunk, 1, _MOST_CYCLES)
        self._check_holds(holds)
        if reset:
            library.core_reset(core)
        busy_before = library.core_busy_cycles(core)
        library.core_begin(core, pauses_seed or 0, patience or self._patience)
        self._send(requests)
        for hold in holds:
            library.core_hold(core, hold.stream, hold.sequence, hold.first, hold.cycles)

        status, shown = _RUNNING, [0] * params.sequences
        while status == _RUNNING and (
                abandon_at is None or library.core_cycle(core) < abandon_at):
            left = chunk if abandon_at is None else abandon_at - library.core_cycle(core)
            status = library.core_run(core, min(chunk, left))
            if status not in (_RUNNING, _DONE):
                raise SimulationError(
                    f"{self._module}: {library.core_error(core).decode()}")
            if progress is not None:
                progress(self._progress(shown))
        return self._results(status == _DONE, busy_before)

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
        """Several tokens of every sequence, each with a pause at every second beat."""
        return 16 * self.params.sequences * (self.params.mac_cycles + 10_000)

    def _check_holds(self, holds: Sequence[Hold]) -> None:
        weights = self.params.external_weights
        for hold in holds:
            check_whole("the first cycle of a hold", hold.first, 0, _MOST_CYCLES)
            check_whole("the cycles of a hold", hold.cycles, 0, _MOST_CYCLES)
            present = {
                CoreStream.LOGITS: self.params.logits, CoreStream.WEIGHTS: weights,
                CoreStream.WEIGHT_REQUESTS: weights}.get(hold.stream, True)
            if not present or not 0 <= hold.sequence < self.params.sequences:
                raise ValueError(
                    f"this core has no stream {hold.stream.name.lower()} of sequence "
                    f"{hold.sequence} that could be held")

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

    def _taken(self, stream: CoreStream, sequence: int) -> tuple[np.ndarray, np.ndarray]:
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
        words, _ = self._taken(CoreStream.TOKENS, sequence)
        layout = token_layout(self.params)
        payloads = _numbers(words[first:])
        token = layout["token"]
        return ((payloads >> token.offset) & ((1 << token.width) - 1),
                (payloads >> layout["last"].offset) & 1 != 0)

    def _progress(self, shown: list[int]) -> CoreProgress:
        """Report, and note how many tokens of each sequence have been reported."""
        tokens = [self._tokens(sequence, first)[0].tolist()
                  for sequence, first in enumerate(shown)]
        for sequence, fresh in enumerate(tokens):
            shown[sequence] += len(fresh)
        taken = sum(len(self._taken(CoreStream.PROMPTS, sequence)[1])
                    for sequence in range(self.params.sequences))
        return CoreProgress(self._library.core_cycle(self._core), taken, tokens)

    def _logits(self, sequence: int) -> tuple[np.ndarray, np.ndarray]:
        """Whole vectors of logits, and the cycles of their last words."""
        params, vocab = self.params, self.params.config.vocab
        bits, length = params.profile.logit.bits, params.vocab_words
        words, cycles = self._taken(CoreStream.LOGITS, sequence)
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

    def _results(self, finished: bool, busy_before: int) -> CoreRun:
        sequences = range(self.params.sequences)
        tokens = [self._tokens(sequence) for sequence in sequences]
        none = (np.zeros((0, self.params.config.vocab), dtype=np.int64),
                np.zeros(0, dtype=np.int64))
        logits = [
            self._logits(sequence) if self.params.logits else none for sequence in sequences]

        def cycles(stream: CoreStream) -> list[np.ndarray]:
            return [self._taken(stream, sequence)[1] for sequence in sequences]

        busy = self._library.core_busy_cycles(self._core) - busy_before
        return CoreRun(
            [each[0] for each in tokens], [each[1] for each in tokens],
            cycles(CoreStream.TOKENS), [each[0] for each in logits],
            [each[1] for each in logits], cycles(CoreStream.PROMPTS),
            self._library.core_cycle(self._core), busy % (1 << 32), finished)


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
