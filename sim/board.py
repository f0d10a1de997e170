"""Simulation of a board: its top module, driven through its pins, with a serial line."""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Sequence
from pathlib import Path

from sterna.export.runtime.runtime import OnnxModel
from sterna.hw.board.top import TOP_MODULE, BoardDesign
from sterna.hw.core.compute.request import Request
from sterna.hw.testbench.job import SimulationError
from sterna.sim.bench.cpp_build import build_library, load_library
from sterna.sim.bench.waves import WaveSignal, check_waves, write_views
from sterna.sim.core.memory import SDRAM_MODEL
from sterna.sim.core.reference import Oracle

__all__ = ["BoardSimulation", "ConversationReference"]

_HARNESS = Path(__file__).with_name("board_harness.cpp")
_CHUNK = 50_000
"""Cycles between checks for Ctrl-C."""
_START_CYCLES = 1_000_000
_FRAME_BITS = 10
_NEVER = 1 << 62


class BoardSimulation:
    """The compiled top module of a board, see :mod:`sterna.hw.board`.

    It has the methods of a serial port that a conversation needs. Time advances only during
    reads. ``work`` is the folder for the Verilog and the library; an identical one is reused.
    ``host_baud`` is the actual speed of the host; None for the board's. The wave file, with views
    of it beside it, is complete when the simulation is deleted.
    """

    def __init__(
        self, design: BoardDesign, work: Path, *, host_baud: float | None = None,
        waves: Path | None = None,
    ) -> None:
        params = design.params
        work.mkdir(parents=True, exist_ok=True)
        sources = []
        for name, text in design.simulation_files.items():
            (work / name).write_text(text, encoding="utf-8", newline="\n")
            if name.endswith(".v"):
                sources.append(work / name)
        if design.image is not None:
            sources.append(SDRAM_MODEL)
        self._library = _load(build_library(
            sources, TOP_MODULE, (), work, harness=_HARNESS, waves=check_waves(waves)))
        bit_cycles = params.clock_hz / (host_baud or params.baud)
        pins = params.board.pins
        with contextlib.chdir(work):        # the folder of its memory files
            self._board = ctypes.c_void_p(
                self._library.board_new(bit_cycles, pins["led"].is_inverted))
        weakref.finalize(self, self._library.board_delete, self._board)
        if waves:
            pins_shown = [WaveSignal(name, 1) for name in ("clk", "rx", "tx", "led")]
            write_views(waves, TOP_MODULE, {"": pins_shown})
            self._library.board_waves(self._board, str(waves.resolve()).encode())
        # The time for a token or its bytes, with a large margin.
        per_token = max(design.cycles_per_token, 3 * _FRAME_BITS * bit_cycles)
        self._patience = int(400 * per_token)
        if not self._run(1, _START_CYCLES):
            raise SimulationError("the simulated board does not start")

    @property
    def cycles(self) -> int:
        """Cycles of the core's clock so far."""
        return self._library.board_cycle(self._board)

    @property
    def busy_cycles(self) -> int:
        """Cycles with the LED on, waiting for a token."""
        return self._library.board_busy_cycles(self._board)

    @property
    def framing_errors(self) -> int:
        """Bytes received without a stop bit."""
        return self._library.board_framing_errors(self._board)

    def write(self, data: bytes) -> int:
        """Queue bytes for the line to the board; they are sent while the board runs."""
        self._library.board_send(self._board, data, len(data))
        return len(data)

    def read(self, size: int = 1) -> bytes:
        """Run until ``size`` bytes are received; return fewer after a timeout."""
        waiting, last = self._run(size, 0), self.cycles
        while waiting < size and self.cycles - last < self._patience:
            before = waiting
            waiting = self._run(size, _CHUNK)
            if waiting > before or self._library.board_unsent(self._board):
                last = self.cycles
        return self._received(size)

    def run(self, cycles: int) -> bytes:
        """Run for a number of cycles; return all bytes received."""
        return self._received(self._run(_NEVER, cycles))

    def _received(self, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        count = self._library.board_receive(self._board, buffer, size)
        return buffer.raw[:count]

    def _run(self, wanted: int, cycles: int) -> int:
        return self._library.board_run(self._board, wanted, cycles)


def _load(path: Path) -> ctypes.CDLL:
    board, size, count = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64
    text = ctypes.c_char_p
    return load_library(path, "board", (
        ("new", board, (ctypes.c_double, ctypes.c_int)),
        ("delete", None, (board,)),
        ("waves", None, (board, text)),
        ("send", None, (board, text, size)),
        ("run", size, (board, size, count)),
        ("receive", size, (board, text, size)),
        ("unsent", size, (board,)),
        ("cycle", count, (board,)),
        ("busy_cycles", count, (board,)),
        ("framing_errors", count, (board,)),
    ))


_LINE_END = 10


class ConversationReference:
    """Conversation with a step graph, behaving like a board with its core.

    ``temperature`` and ``seed`` are those of :class:`~sterna.model.quantized.sampling.Sampler`.
    """

    def __init__(self, graph: OnnxModel, *, temperature: float = 0.0, seed: int = 1) -> None:
        self._oracle = Oracle(graph, graph.info.logit.frac)
        self._temperature, self._seed = temperature, seed
        self.forget()

    def forget(self) -> None:
        """Begin a sequence with the next line."""
        self._start = True
        self._pending: list[int] = []

    def say(self, text: Sequence[int], tokens: int, *, line_end: bool = False) -> list[int]:
        """Return the tokens that follow a line.

        As on a board, the last one is run at the start of the next line.
        """
        given = [*self._pending, *text]
        if line_end or not given:
            given.append(_LINE_END)
        written = self._oracle.answer(Request(
            tuple(given), tokens, self._temperature, self._seed, self._start)).generated
        self._start, self._pending = False, written[-1:]
        return written
