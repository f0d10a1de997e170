"""The kernels on processors that this machine does not have, under qemu.

The program holds every kernel that its processor can run to results of the integer reference.
Emulation shows that the integers are right; it says nothing about speed, and real ARM has not
been tried.
"""

import platform
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import ODD
from extreme_models import EXTREMES
from native_graphs import planted_sources, random_hgrn_bit
from onnx import helper
from onnx.numpy_helper import to_array
from test_native_records import PUBLISHED, WIDEST

from sterna.export.forms.forms import build
from sterna.export.native.ops import OPS_SOURCES, with_ops
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.hgrn_bit import WIDTHS
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.synthetic import random_model

PROGRAM = Path(__file__).with_name("native_selfcheck.cpp")
OPTIONS = ("-std=c++17", "-O3", "-ffp-contract=off")

pytestmark = [pytest.mark.slow, pytest.mark.long]


def _models() -> list[QuantizedModel]:
    wide = ModelConfig(d=130, layers=1, dff=1030, vocab=70)
    return [*(random_model(config, profile, 3) for profile in (S16, C12, WIDEST)
              for config in (ODD, ModelConfig(1, 1, 1, 2))),
            random_model(wide, S16, 3), random_model(ODD, S16, 2, gain=100.0),
            EXTREMES["everything at once"](random_model(wide, S16, 1)),
            *(random_hgrn_bit(PUBLISHED, widths) for widths in WIDTHS.values())]


def _bytes(values: np.ndarray) -> bytes:
    """A tensor as the program reads it."""
    head = np.array([helper.np_dtype_to_tensor_dtype(values.dtype), values.ndim, *values.shape])
    content = values.tobytes()
    return head.astype(np.int64).tobytes() + content + bytes(-len(content) % 8)


def _case(model: QuantizedModel, first: int) -> bytes:
    rng = np.random.default_rng(5)
    tokens = rng.integers(0, model.vocab, (3, 23))      # more rows than a tile has
    h = model.states[0].output
    state = rng.integers(h.min, h.max + 1, (len(model.states), 3, model.states[0].width))
    logits, last = IntegerModel(model).run(tokens, state)
    graph = with_ops(build(model)).graph
    names = helper.get_node_attr_value(graph.node[0], "names")
    program, *constants = map(to_array, graph.initializer)
    return b"".join([
        *map(_bytes, (program, np.frombuffer(names, np.uint8), tokens, np.array([first]),
                      state.astype(np.int32), logits[:, first:].astype(np.int32),
                      last.astype(np.int32))),
        np.int64(len(constants)).tobytes(), *map(_bytes, constants)])


def _compile(compiler: str, folder: Path, *options: str, sources: Path = OPS_SOURCES) -> Path:
    files = [str(path) for path in sorted(sources.glob("*.cpp"))
             if path.name not in ("ops.cpp", "c_api.cpp")]
    program = folder / "selfcheck"
    subprocess.run([compiler, *OPTIONS, *options, f"-I{sources}", str(PROGRAM), *files, "-o",
                    str(program)], check=True)
    return program


def _run(*command: object) -> list[str]:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == any("differs" in line for line in done.stdout.splitlines()), done
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("cases") / "cases"
    path.write_bytes(b"".join(_case(model, first) for model in _models() for first in (0, 22)))
    return path


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    return _compile("g++", tmp_path_factory.mktemp("native"))


def test_the_kernels_of_this_processor_are_exact(program, cases):
    lines = _run(program, cases)
    assert lines[0] == "portable exact"
    assert all(line.endswith(" exact") for line in lines)


@pytest.mark.parametrize(("file", "right", "wrong"), [
    ("records.hpp", "(y[i] * r + half) >> k", "(y[i] * r) >> k"),
    ("records.hpp", "(one - f) * c[i] + half", "(one - f) * c[i]"),
    ("records.hpp", "(wanted - first, 0)", "(wanted - first + 1, 0)"),
    ("kernel_portable.cpp", "total[row] = -sums[t]", "total[row] = 1 - sums[t]"),
])
def test_a_planted_fault_is_found(cases, file, right, wrong, tmp_path):
    sources = planted_sources(tmp_path / "sources", file, right, wrong)
    assert _run(_compile("g++", tmp_path, "-O0", sources=sources), cases)[0] == "portable differs"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86 programs")
@pytest.mark.needs("qemu-x86_64-static")
@pytest.mark.parametrize(("processor", "kernels"), [
    ("Nehalem", ["portable"]), ("Haswell", ["portable", "avx2"])])
def test_older_x86_takes_the_kernels_it_has(program, cases, processor, kernels):
    assert _run("qemu-x86_64-static", "-cpu", processor, program, cases) == [
        f"{kernel} exact" for kernel in kernels]


@pytest.mark.needs("aarch64-linux-gnu-g++", "qemu-aarch64-static")
def test_neon_is_exact_under_emulation(cases, tmp_path):
    program = _compile("aarch64-linux-gnu-g++", tmp_path, "-static")
    for processor, kernels in (("cortex-a53", ["neon"]), ("max", ["neon", "neon-dot"])):
        assert _run("qemu-aarch64-static", "-cpu", processor, program, cases) == [
            "portable exact", *(f"{kernel} exact" for kernel in kernels)]
