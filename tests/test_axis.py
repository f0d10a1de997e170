"""The AXI4-Stream wrappers: lint, and traffic from drivers and sinks that are not ours."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from conftest import sizes_of
from random_networks import random_network

from sterna.hw import catalog
from sterna.hw.catalog import UNITS, emit_verilog
from sterna.hw.emit.payloads import FieldBits, Fields, UnitPorts, pack_words, read_field
from sterna.hw.testbench.scoreboard import ScoredPhase, check_phase
from sterna.hw.tools.process import verilator_environment
from sterna.model.config import ModelConfig
from sterna.model.profile import C12
from sterna.model.quantized.synthetic import random_model
from sterna.sim.bench.runner import Launch, Simulator, check_simulator, run_launch
from sterna.sim.core.reference import record_activations

SIZES = {"rows": 4, "cols": 8, "lanes": 3}
TOKENS = np.array([5, 64, 0])
ICARUS = pytest.mark.needs("iverilog")


def sizes(unit: str) -> dict[str, int]:
    return sizes_of(unit, **SIZES)


@pytest.fixture(scope="module")
def model():
    return random_model(ModelConfig(d=12, layers=2, dff=21, vocab=65), C12, seed=7)


@pytest.mark.parametrize("unit", [
    pytest.param(unit, marks=[pytest.mark.slow] if unit == "core" else []) for unit in UNITS])
def test_every_wrapper_is_lint_clean_and_described(model, unit, tmp_path):
    model = random_network(C12, 7) if unit == "network" else model
    done = emit_verilog(
        model, unit, tmp_path / unit, axis=True, registered=unit == "core", **sizes(unit))
    assert done.sources[-1].name == f"{done.module}_axis.v"
    clean = subprocess.run(
        ["verilator", "--lint-only", "--quiet", "-Wall", "sterna.vlt", "-f", "filelist.f"],
        cwd=done.folder, env=verilator_environment(), capture_output=True, text=True, timeout=300,
        check=False)
    errors = [line for line in (clean.stdout + clean.stderr).splitlines()
              if "_axis.v" in line or unit != "core"]
    assert not errors
    text = done.sources[-1].read_text()
    readme = (done.folder / "README.md").read_text()
    axis = done.manifest["axis"]
    assert axis["module"] == f"{done.module}_axis"
    assert set(axis["streams"]) == set(done.manifest["payloads"])
    for name, stream in axis["streams"].items():
        assert f"`{stream['ports']}_*`" in readme
        width = re.search(rf"wire \[(\d+):0\] {stream['ports']}_tdata", text)
        assert int(width[1]) + 1 == stream["tdata_bits"]
        assert stream["tdata_bits"] % 8 == 0
        bits = sorted(bit for field in stream["fields"]
                      for bit in range(field["low"], field["high"] + 1))
        assert bits == list(range(len(bits)))
        payload = {field["name"] for field in done.manifest["payloads"][name]}
        assert (f"{stream['ports']}_tlast" in text) == ("last" in payload)
        assert {field["name"] for field in stream["fields"]} == payload - {"last"}


def test_without_the_option_nothing_changes(model, tmp_path):
    plain = emit_verilog(model, "glu", tmp_path / "plain", lanes=3)
    wrapped = emit_verilog(model, "glu", tmp_path / "wrapped", lanes=3, axis=True)
    assert "axis" not in plain.manifest
    assert {path.name for path in wrapped.folder.iterdir()} - {
        path.name for path in plain.folder.iterdir()} == {"glu_unit_axis.v"}
    assert plain.verilog_path.read_bytes() == wrapped.verilog_path.read_bytes()


def axis_fields(stream: dict) -> Fields:
    return {each["name"]: FieldBits(**{**each, "dims": tuple(each["dims"])})
            for each in stream["fields"]}


def frames(words: list[int], payload: Fields, stream: dict) -> list[str]:
    """Payloads as bytes in frames that end with ``last``, by the bits in the manifest."""
    lanes = stream["tdata_bits"] // 8
    values = {name: read_field(words, bits) for name, bits in payload.items()}
    ends = values.pop("last")[:, 0] if stream["tlast"] else np.zeros(len(words))
    data = [word.to_bytes(lanes, "little") for word in pack_words(axis_fields(stream), values)]
    cuts = [0, *(np.flatnonzero(ends) + 1).tolist()]
    cuts += [len(words)] * (cuts[-1] != len(words))
    assert not stream["tlast"] or ends[-1]
    return [b"".join(data[a:b]).hex() for a, b in pairwise(cuts)]


def payloads(found: list[str], payload: Fields, stream: dict) -> list[int]:
    """The payloads that frames hold; the bits above the fields have to be zero."""
    lanes = stream["tdata_bits"] // 8
    cut = [[int.from_bytes(data[at:at + lanes], "little") for at in range(0, len(data), lanes)]
           for data in map(bytes.fromhex, found)]
    words = [word for frame in cut for word in frame]
    fields = axis_fields(stream)
    assert max(words).bit_length() <= 1 + max(each.high for each in fields.values())
    values = {name: read_field(words, bits) for name, bits in fields.items()}
    if stream["tlast"]:
        values["last"] = np.array([at == len(frame) - 1 for frame in cut for at in range(
            len(frame))], dtype=np.int64)
    return pack_words(payload, values)


def through_the_wrapper(
    done, scored: list[ScoredPhase], simulator: Simulator, work: Path,
) -> list[dict[str, list[int]]]:
    ports, streams = UnitPorts.of(done.manifest), done.manifest["axis"]["streams"]
    job = [{"inputs": {streams[name]["ports"]: frames(
                words, ports.fields[name], streams[name])
                for name, words in each.phase.inputs.items()},
            "outputs": {streams[name]["ports"]: count
                        for name, count in each.phase.outputs.items()}} for each in scored]
    jobs, results = work / "job.json", work / "results.json"
    jobs.write_text(json.dumps(job))
    run_launch(
        Launch(simulator, [str(path) for path in done.sources], done.manifest["axis"]["module"],
               "axis_bench", str(work),
               environment={"AXIS_JOB": str(jobs), "AXIS_RESULTS": str(results)}),
        {**check_simulator(simulator, work), "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parent), *sys.path])})
    return [{name: payloads(phase[streams[name]["ports"]], ports.fields[name], streams[name])
             for name in each.phase.outputs}
            for each, phase in zip(scored, json.loads(results.read_text()), strict=True)]


@pytest.mark.parametrize(("unit", "simulator"), [
    *(pytest.param(unit, Simulator.ICARUS, marks=ICARUS) for unit in ("glu", "mac")),
    pytest.param("glu", Simulator.VERILATOR, marks=pytest.mark.slow)])
def test_axi_stream_traffic_agrees_with_the_reference(model, unit, simulator, tmp_path):
    done = emit_verilog(
        model, unit, tmp_path / unit, axis=True, registered=unit == "mac", **sizes(unit))
    stimulus = catalog.UNITS[unit].stimulus
    acts, = record_activations(model, [TOKENS], stimulus.tensors(model))
    # What is sent before a reset in mid-vector has no place in frames.
    scored = [each for each in stimulus.phases(model, done, acts)
              if each.expected and not each.phase.levels][:3]
    found = through_the_wrapper(done, scored, simulator, tmp_path)
    for each, outputs in zip(scored, found, strict=True):
        checks = check_phase(each, outputs)
        assert checks.reference.values > 0
        assert checks.reference.passed, checks.reference.first
