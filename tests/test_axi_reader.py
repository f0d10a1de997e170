"""Linear reads on AXI4, against a memory that is not ours."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from sterna.hw.emit.verilog import write_verilog
from sterna.hw.memory.axi_reader import AxiReader, AxiReadParams
from sterna.sim.bench.runner import Launch, Simulator, check_simulator, run_launch

COUNT_BITS = 12


@pytest.mark.parametrize(("params", "bus_period", "pauses"), [
    (AxiReadParams(64, own_clock=True), 7, True),
    *(pytest.param(*case, marks=pytest.mark.long) for case in (
        (AxiReadParams(64), 10, True), (AxiReadParams(32, outstanding=1), 10, True),
        (AxiReadParams(512, own_clock=True, address_bits=40), 13, True),
        (AxiReadParams(128), 10, False)))])
@pytest.mark.parametrize("fails", [False, True])
def test_words_come_in_the_order_asked_for(params, bus_period, pauses, fails, tmp_path):
    rng = np.random.default_rng(params.data_bits)
    size = params.data_bits // 8
    count = 700 if size < 64 else 300
    memory = rng.integers(0, 256, size=count * size, dtype=np.uint8).tobytes()
    reads = [(0, count), *((int(at), int(rng.integers(1, 90)))
                           for at in rng.integers(0, count - 90, size=12))]
    # Without the last word of all: a read of it fails, and a later one does not mend that.
    job = {"memory": memory.hex(), "reads": reads, "bad": len(memory) - fails, "pauses": pauses,
           "bus_period": bus_period, "count_bits": COUNT_BITS}
    jobs, results = tmp_path / "job.json", tmp_path / "results.json"
    jobs.write_text(json.dumps(job))
    (tmp_path / "run").mkdir()
    verilog = write_verilog(AxiReader(params, COUNT_BITS), "reader", tmp_path)
    run_launch(
        Launch(Simulator.VERILATOR, [str(verilog)], "reader", "axi_bench", str(tmp_path / "run"),
               environment={"AXI_JOB": str(jobs), "AXI_RESULTS": str(results)}),
        {**check_simulator(Simulator.VERILATOR, tmp_path), "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parent), *sys.path])})
    found = json.loads(results.read_text())
    words = [memory[size * at:size * at + size][::-1].hex() for at in range(count)]
    expected = [word for first, number in reads for word in words[first:first + number]]
    assert found["failed"] == fails
    if not fails:
        assert [word.rjust(2 * size, "0") for word in found["words"]] == expected
