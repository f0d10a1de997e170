"""The core behind registers, driven by bus masters and a memory that are not ours."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from random_networks import random_frames, random_network
from simulated_cores import SMALL

from sterna.cli.main import main
from sterna.hw.catalog import emit_verilog
from sterna.hw.core.compute.request import Request
from sterna.hw.core.image.core_image import build_image
from sterna.hw.core.image.linear import ImageHeader, format_digest, pack_image
from sterna.hw.core.image.reader import ImageStatus
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.core.params.limits import Limits
from sterna.hw.core.product.core_product import CORE
from sterna.hw.core.product.registers import Bus
from sterna.hw.emit.folder import EmittedUnit, emit_component
from sterna.hw.tools.process import verilator_environment
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.synthetic import random_model
from sterna.sim.bench.runner import Launch, Simulator, check_simulator, run_launch
from sterna.sim.core.reference import answer

MODELS = [random_model(ModelConfig(*shape), S16, seed=seed)
          for seed, shape in enumerate(((8, 1, 12, 20), (6, 2, 10, 23)))]
BASES = (0x1234_0000, 0x12_0000_1000)


def logits_of(words: list[list[int]], params: CoreParams, sequence: int) -> np.ndarray:
    """Logits ``[predictions, vocab]`` of a sequence, from the registers of their words."""
    mine = [word for word in words if word[0] == sequence]
    ends = np.flatnonzero([word[1] for word in mine])
    values = np.array([word[2:] for word in mine], dtype=np.uint32).astype(np.int32)
    return values.reshape(len(ends), -1)


def drive(done: EmittedUnit, job: dict, work: Path, simulator: Simulator) -> dict:
    jobs, results = work / "job.json", work / "results.json"
    jobs.write_text(json.dumps({"header": done.text(f"{done.module}.h"), **job}))
    (work / "run").mkdir()
    run_launch(
        Launch(simulator, [str(path) for path in done.sources], done.module, "registers_bench",
               str(work / "run"),
               environment={"REGISTERS_JOB": str(jobs), "REGISTERS_RESULTS": str(results)}),
        {**check_simulator(simulator, work), "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parent), *sys.path])})
    return json.loads(results.read_text())


@pytest.mark.parametrize(("bus", "port", "simulator"), [
    (Bus.AXI4_LITE, 32, Simulator.VERILATOR),
    pytest.param(Bus.WISHBONE, 0, Simulator.VERILATOR, marks=pytest.mark.slow)])
def test_a_host_writes_texts_of_two_models(bus, port, simulator, tmp_path):
    limits = Limits.of(*MODELS)
    params = CoreParams(limits, **SMALL, sequences=2, port_bits=port)
    done = emit_component(
        MODELS[0], CORE.registers(
            MODELS[0], params, bus, "matmul_free_core_bus"), tmp_path / "core")
    lint = subprocess.run(
        ["verilator", "--lint-only", "--quiet", "-Wall", "--top-module", done.module, "sterna.vlt",
         "-f", "filelist.f"], cwd=done.folder, env=verilator_environment(), capture_output=True,
        text=True, timeout=300, check=False)
    assert not lint.returncode, lint.stderr
    if port:    # the driver of the documentation
        text = (Path(__file__).parents[1] / "docs" / "core.md").read_text(encoding="utf-8")
        (tmp_path / "driver.c").write_text(re.search(r"```c\n(.*?)```", text, re.S)[1])
        subprocess.run(
            ["g++", "-x", "c", "-std=c99", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
             "-I", str(done.folder), str(tmp_path / "driver.c")], check=True, timeout=60)
    images = [pack_image(build_image(model, params)) for model in MODELS] if port else []
    texts, rounds = [], []
    for number in range(1 + bool(port)):
        model = MODELS[number]
        # Sequence 0 of the first one runs the test of the image.
        asked = [Request(tuple(range(number, number + 1 + 2 * sequence)),
                         3 + sequence if number + sequence else 16,
                         temperature=0.7 * sequence, seed=4) for sequence in range(2)]
        texts.append([answer(IntegerModel(model), [each])[0] for each in asked])
        rounds.append({
            "base": BASES[number] if port else None, "cut": 150 * number,
            "words": params.logit_beats(model.config.vocab),
            "requests": [{"sequence": sequence, "prompt": each.prompt, "limit": each.tokens,
                          "beta": each.beta, "seed": each.seed}
                         for sequence, each in enumerate(asked)]})
    memory = dict(zip(BASES, (each.hex() for each in images), strict=False))
    bad = []
    if port:    # one that is damaged, and a place where nothing is
        memory[0] = (images[0][:-1] + bytes([images[0][-1] ^ 1])).hex()
        bad = [{"base": base, "cut": 0} for base in (0, 0x7000_0000)]
    found = drive(done, {"images": memory, "rounds": [*bad, *rounds], "sequences": 2,
                         "vocab": params.vocab}, tmp_path, simulator)
    assert found["sequences"] == 2
    if port:
        assert found["digest"] == format_digest(params)
        assert found["rounds"][:2] == [ImageStatus.DAMAGED.value, ImageStatus.FAILED.value]
        text = [token for sequence, token, _ in found["rounds"][2]["tokens"] if not sequence]
        assert zlib.crc32(np.array(text, dtype="<u4")) == ImageHeader.from_bytes(images[0]).test
    for expected, one in zip(texts, found["rounds"][len(bad):], strict=True):
        for sequence, each in enumerate(expected):
            mine = [word for word in one["tokens"] if word[0] == sequence]
            assert [token for _, token, _ in mine] == each.generated
            assert [last for *_, last in mine] == [0] * (len(mine) - 1) + [1]
            logits = logits_of(one["logits"], params, sequence)
            np.testing.assert_array_equal(
                logits[:, :len(each.logits[0])], np.array(each.logits))


def test_a_host_gives_frames_to_a_network_behind_a_memory_and_takes_its_results(tmp_path):
    model = random_network(C12, 2)
    sizes = {"rows": 2, "cols": 8, "quant_lanes": 2, "port_bits": 64}
    done = emit_verilog(model, None, tmp_path / "network", bus=Bus.AXI4_LITE, **sizes)
    model.save(tmp_path / "model.safetensors")
    assert not main(["pack", str(tmp_path / "model.safetensors"), str(done.folder), "-o",
                     str(tmp_path / "image.bin"), "--quiet"])
    image = (tmp_path / "image.bin").read_bytes()
    frames = random_frames(model, 5)
    words = [{f"x_{lane}": value for lane, value in enumerate(word)} | {"start": at == 3}
             for at, frame in enumerate(frames.tolist())
             for word in (frame[:2], [*frame[2:], 0])]
    found = drive(done, {"frames": words, "results": 5 * 3, "base": BASES[1],
                         "images": {BASES[1]: image.hex()}}, tmp_path, Simulator.VERILATOR)
    results = np.array(found["results"], dtype=np.uint32).astype(np.int32).reshape(5, 3, 3)
    expected = np.concatenate([
        IntegerModel(model).run(part[None])[0][0] for part in (frames[:3], frames[3:])])
    np.testing.assert_array_equal(results[..., :2].reshape(5, 6)[:, :5], expected)
    assert results[..., 2].tolist() == [[0, 0, 1]] * 5


@pytest.mark.parametrize(("options", "message"), [
    (["--unit", "glu", "--bus", "wishbone"], "--bus is for --unit core or network, without --axis"),
    (["--unit", "core", "--bus", "wishbone", "--axis"], "without --axis or --registered"),
    (["--unit", "core", "--bus", "wishbone", "--trace"], "--trace does not go with --bus"),
    (["--unit", "core", "--bus", "axi"], "--bus must be one of axi4-lite, wishbone, got 'axi'"),
    (["--unit", "core", "--bus", "wishbone", "--port-bits", "16"],
     "an AXI4 bus has 32 to 512 bits: --port-bits is 16"),
])
def test_what_has_no_registers_is_refused(options, message, tmp_path, capsys):
    assert main(["verilog", "micro", *options, "-o", str(tmp_path / "core"), "--quiet"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "core").exists()


def test_the_same_core_has_the_same_map(tmp_path):
    one, two = (emit_verilog(MODELS[0], "core", tmp_path / str(each), bus=Bus.AXI4_LITE, rows=2,
                             cols=8) for each in range(2))
    assert one.verilog_path.read_bytes() == two.verilog_path.read_bytes()
    offsets = {each["name"]: each["offset"] for each in one.manifest["registers"]}
    text = one.text(f"{one.module}.vh")
    for name, offset in offsets.items():
        assert f"STERNA_{name} = 12'h{offset:03x};" in text
        assert f"| 0x{offset:03x} | `{name}` |" in one.text("README.md")
