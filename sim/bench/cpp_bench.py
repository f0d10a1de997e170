"""The C++ bench: runs phases without pauses, some 25 times as fast as cocotb."""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from sterna.hw.testbench.job import Job, Phase, PhaseResult, SimulationError
from sterna.hw.tools.process import copy_memories
from sterna.sim.bench.cpp_build import build_library, load_library
from sterna.sim.bench.waves import check_waves

__all__ = ["run_in_cpp"]

CHUNK = 50_000
"""Cycles between checks for Ctrl-C."""

_HARNESS = Path(__file__).with_name("cpp_bench.cpp")
_PARTS = ("payload", "valid", "ready")
_RUNNING, _DONE = 0, 1


def run_in_cpp(
    sources: Sequence[Path], top: str, job: Job, work: Path, *, waves: Path | None = None,
) -> list[PhaseResult]:
    """Run a job on the module ``top`` of Verilog sources; ``work`` keeps the compiled library.

    The results are those of :func:`~sterna.sim.bench.runner.run_on` in Verilator.
    ValueError if a phase pauses or a word does not fit its port; SimulationError if the unit does
    not compile, lacks a port, hangs, or outputs words after the end.
    """
    for phase in job.phases:
        if phase.random_pauses or phase.pauses:
            raise ValueError(
                f"the C++ bench never pauses, phase {phase.name!r} does: run it in cocotb")
    work.mkdir(parents=True, exist_ok=True)
    for source in sources:
        copy_memories(source, work)
    ports = ["clk", "rst", *job.levels, *sorted({bits.port for bits in job.monitored}),
             *(f"{name}__{part}" for name in (*job.inputs, *job.outputs) for part in _PARTS)]
    library = _load(build_library(
        sources, top, ports, work, harness=_HARNESS, waves=check_waves(waves)))
    waves = waves and waves.resolve()
    with contextlib.chdir(work):        # the folder of its memory files
        bench = _Bench(library, top, job, waves)
    with contextlib.closing(bench):     # completes the wave file
        return [bench.run(phase) for phase in job.phases]


class _Port(ctypes.Structure):
    """A port, as in ``cpp_bench.cpp``."""

    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("bits", ctypes.c_size_t)]

    def as_bytes(self, words: Sequence[int]) -> bytes:
        for word in words:
            if word >> self.bits:
                raise ValueError(f"a port of {self.bits} bits cannot be given {word}")
        return b"".join(word.to_bytes(self.size, "little") for word in words)


class _Bench:
    """A unit after creation and reset, with an end at each of its streams."""

    def __init__(self, library: ctypes.CDLL, top: str, job: Job, waves: Path | None) -> None:
        self._library, self._top, self._job = library, top, job
        self._streams = [*job.inputs, *job.outputs]
        self._bench = bench = ctypes.c_void_p(
            library.bench_new(str(waves).encode() if waves else None))
        self.close = weakref.finalize(self, library.bench_delete, bench)
        for name in self._streams:
            library.bench_end(
                bench, name in job.inputs, *(self._port(f"{name}__{part}") for part in _PARTS))
        for bits in job.monitored:
            library.bench_monitor(bench, self._port(bits.port), bits.low, bits.width)
        self._set(dict.fromkeys(job.levels, 0))
        library.bench_reset(bench)

    def _port(self, name: str) -> _Port:
        port = _Port()
        self._library.bench_port(self._bench, name.encode(), port)
        if not port.data:
            raise SimulationError(f"{self._top} has no port {name}")
        return port

    def _set(self, levels: Mapping[str, int]) -> None:
        for name, level in levels.items():
            port = self._port(name)
            ctypes.memmove(port.data, port.as_bytes([level]), port.size)

    def run(self, phase: Phase) -> PhaseResult:
        """Run a phase after the previous one."""
        library, bench, job = self._library, self._bench, self._job
        if phase.reset:
            library.bench_reset(bench)
        self._set(phase.levels)
        library.bench_begin(bench, job.patience, not any(phase.outputs.values()), phase.cut_after,
                            phase.drain)
        for index, name in enumerate(self._streams):
            words = phase.inputs.get(name, [])
            library.bench_want(bench, index, len(words) or phase.outputs.get(name, 0),
                               self._port(f"{name}__payload").as_bytes(words))
        status = _RUNNING
        while status == _RUNNING:
            status = library.bench_run(bench, CHUNK)
        if status != _DONE:
            raise SimulationError(f"{self._top}: {phase.name}: {self._failure(phase)}")
        outputs, taken_at, seen, seen_at = {}, {}, {}, {}
        for index, name in enumerate(job.outputs, len(job.inputs)):
            outputs[name], taken_at[name] = self._record(index)
        for index, bits in enumerate(job.monitored, len(self._streams)):
            seen[bits.name], seen_at[bits.name] = self._record(index)
        return PhaseResult(outputs, library.bench_cycles(bench), taken_at, seen, seen_at)

    def _failure(self, phase: Phase) -> str:
        """The failure, in the words of the cocotb bench."""
        passed = []
        for index, name in enumerate(self._streams):
            count, words = len(self._record(index)[1]), phase.inputs.get(name, [])
            wanted = len(words) or phase.outputs.get(name, 0)
            if count > wanted and any(phase.outputs.values()):
                return f"more came out of {name} than the {wanted} words expected"
            done = "sent" if name in self._job.inputs else "received"
            passed.append(f"{count} of {wanted} {name} {done}")
        return f"no transfer for {self._job.patience} cycles with {', '.join(passed)}"

    def _record(self, index: int) -> tuple[list[int], list[int]]:
        """Words and cycles of an end or of a monitor, which is numbered after the ends."""
        words, cycles = ctypes.POINTER(ctypes.c_char)(), ctypes.POINTER(ctypes.c_uint64)()
        size = ctypes.c_size_t()
        count = self._library.bench_record(
            self._bench, index, ctypes.byref(size), ctypes.byref(words), ctypes.byref(cycles))
        each = size.value
        data = words[:count * each]
        return ([int.from_bytes(data[at:at + each], "little") for at in range(0, len(data), each)],
                cycles[:count])


def _load(path: Path) -> ctypes.CDLL:
    """Load a library and declare the functions at the end of ``cpp_bench.cpp``."""
    bench, port, address = ctypes.c_void_p, ctypes.POINTER(_Port), ctypes.c_void_p
    text, size, flag = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int
    return load_library(path, "bench", (
        ("new", bench, (text,)), ("delete", None, (bench,)), ("reset", None, (bench,)),
        ("port", None, (bench, text, port)), ("end", None, (bench, flag, port, port, port)),
        ("monitor", None, (bench, port, size, size)),
        ("begin", None, (bench, size, flag, size, size)),
        ("want", None, (bench, size, size, text)), ("run", flag, (bench, size)),
        ("cycles", size, (bench,)), ("record", size, (bench, size, address, address, address)),
    ))
