"""The SDRAM controller: words as they were written, and no time of the memory missed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sterna.hw.emit.verilog import write_verilog
from sterna.hw.memory.sdram import SdramParams
from sterna.hw.testbench.job import Job, Phase
from sterna.sim.bench.runner import Simulator, run_on
from sterna.sim.core.memory import SDRAM_MODEL, SimulatedSdram, sdram_faults, sdram_times

SIMULATORS = [Simulator.VERILATOR, *([Simulator.ICARUS] if shutil.which("iverilog") else [])]
SMALL = SdramParams(100_000_000, row_bits=11, column_bits=8, start=2_000.0)
ADDRESS_BITS = 13    # the words of all banks of eight rows


FAULTS = [
    ("row_to_column", 1.6, "a word within tRCD"), ("precharge", 1.6, "within tRP"),
    ("row_active", 3.0, "precharge within tRAS"), ("row_cycle", 4.0, "activate within tRC"),
    ("refresh", 2.0, "a command during a refresh"), ("write_recovery", 3.0, "precharge within tWR"),
    ("refresh_interval", 0.3, "nine refreshes are due"),
    ("start", 2.0, "a command before the memory is ready")]


def run(
    params: SdramParams, memories: list[SdramParams], work: Path, simulator: Simulator,
    *, pauses: bool = True,
) -> list[tuple[bool, list[str], list[int]]]:
    """Write words, then read some of them, for each memory; return (whether they came as written,
    what the model found wrong, the cycles in which words came)."""
    rng = np.random.default_rng(params.clock_hz)
    count = 700
    first = int(rng.integers(0, (1 << ADDRESS_BITS) - count))
    # Across rows one after the other, and in any order.
    places = [*range(first, first + count), *map(int, rng.permutation(1 << ADDRESS_BITS)[:60])]
    memory = dict(zip(places, map(int, rng.integers(0, 1 << 16, size=len(places))), strict=True))
    spans = [(first, count), *((first + int(at), int(rng.integers(1, 40)))
                               for at in rng.integers(0, count - 40, size=20))]
    expected = [memory[at + offset] for at, size in spans for offset in range(size)]
    phases = [phase for real in memories for phase in (
        Phase("write", {"writes": [at | word << ADDRESS_BITS for at, word in memory.items()]}, {},
              reset=True, random_pauses=pauses, cut_after=200, levels={"times": sdram_times(real)}),
        Phase("read", {"reads": [at | size << ADDRESS_BITS for at, size in spans]},
              {"data": len(expected)}, random_pauses=pauses))]
    work.mkdir(parents=True, exist_ok=True)
    bench = write_verilog(
        SimulatedSdram(params, ADDRESS_BITS, words=1 << ADDRESS_BITS), "bench", work)
    results = run_on(simulator, [bench, SDRAM_MODEL], "bench", Job(
        ["reads", "writes"], ["data"], 1, phases, ["times"], patience=3000), work / "run")
    wrong = sdram_faults(work / "run" / "simulation.log")
    return [(result.outputs["data"] == expected, found, result.taken_at["data"])
            for result, found in zip(results[1::2], wrong[-len(memories):], strict=True)]


@pytest.mark.parametrize(("params", "simulator"), [
    (SMALL, Simulator.VERILATOR),
    *(pytest.param(params, simulator, marks=pytest.mark.long)
      for params in (SMALL, replace(SMALL, clock_hz=133_000_000, row_bits=12, column_bits=9),
                     replace(SMALL, clock_hz=25_000_000))
      for simulator in SIMULATORS)])
def test_words_are_read_as_they_were_written_and_no_time_is_missed(params, simulator, tmp_path):
    """The model finds nothing wrong, unless the memory is slower than the controller was told."""
    slower = [replace(params, **{name: factor * getattr(params, name)})
              for name, factor, _ in FAULTS]
    slower = slower if params is SMALL else []
    (right, found, _), *others = run(params, [params, *slower], tmp_path, simulator)
    assert right
    assert not found
    for (_, wrong, _), (_, _, message) in zip(others, FAULTS, strict=False):
        assert any(message in line for line in wrong), (message, wrong)


@pytest.mark.long
def test_of_a_long_read_a_word_comes_in_nearly_every_cycle(tmp_path):
    (right, wrong, cycles), = run(SMALL, [SMALL], tmp_path, Simulator.VERILATOR, pauses=False)
    assert right
    assert not wrong
    assert cycles[699] - cycles[0] < 700 / 0.95
