"""The kernels on processors that this machine does not have, under qemu.

The program checks every kernel that its processor can run against the portable one and
prints a hash of the portable results, which must be the same everywhere; on this machine
other tests hold them to the integer reference. Emulation shows that the integers are right;
it says nothing about speed, and real ARM has not been tried.
"""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from test_native_layers import WIDEST

from sterna.export.native.graph import profile_numbers
from sterna.export.native.ops import OPS_SOURCES
from sterna.model.profile import C12, S16

PROGRAM = Path(__file__).with_name("native_selfcheck.cpp")
OPTIONS = ("-std=c++17", "-O3", "-ffp-contract=off", f"-I{OPS_SOURCES}")

pytestmark = [pytest.mark.slow, pytest.mark.long]


def _need(*tools: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


def _compile(compiler: str, folder: Path, *options: str) -> Path:
    sources = [str(path) for path in sorted(OPS_SOURCES.glob("*.cpp"))
               if path.name not in ("ops.cpp", "c_api.cpp")]
    program = folder / "selfcheck"
    subprocess.run([compiler, *OPTIONS, *options, str(PROGRAM), *sources, "-o", str(program)],
                   check=True)
    return program


def _run(*command: str) -> list[str]:
    profiles = [",".join(f"{name}={value}" for name, value in profile_numbers(each).items())
                for each in (S16, C12, WIDEST)]
    done = subprocess.run([*command, *profiles], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    _need("g++")
    return _compile("g++", tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module")
def here(program):
    """What the program prints on this processor."""
    return _run(str(program))


def test_the_kernels_of_this_processor_agree(here):
    assert here[0] == "portable exact"
    assert here[-1].startswith("hash ")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86 programs")
@pytest.mark.parametrize(("processor", "kernels"), [
    ("Nehalem", ["portable"]), ("Haswell", ["portable", "avx2"])])
def test_older_x86_takes_the_kernels_it_has(program, here, processor, kernels):
    _need("qemu-x86_64-static")
    assert _run("qemu-x86_64-static", "-cpu", processor, str(program)) == [
        *(f"{kernel} exact" for kernel in kernels), here[-1]]


def test_neon_is_exact_under_emulation(here, tmp_path):
    _need("aarch64-linux-gnu-g++", "qemu-aarch64-static")
    program = _compile("aarch64-linux-gnu-g++", tmp_path, "-static")
    for processor, kernels in (("cortex-a53", ["neon"]), ("max", ["neon", "neon-dot"])):
        assert _run("qemu-aarch64-static", "-cpu", processor, str(program)) == [
            "portable exact", *(f"{kernel} exact" for kernel in kernels), here[-1]]
