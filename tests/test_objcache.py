"""Objects of Verilator's library are compiled once, and again when anything changes."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from sterna.hw.testbench.job import Job, Phase
from sterna.hw.tools.objcache import objcache
from sterna.hw.tools.process import verilator_environment
from sterna.sim.bench.runner import Simulator, run_on

# Says its version, or writes down that it ran and what it was given.
COMPILER = """#!/bin/sh
[ "$1" = --version ] && { echo "$VERSION"; exit 0; }
[ "$1" = -dumpmachine ] && exit 0
echo "$@" >> "$RUNS"
for last; do :; done
grep -q nonsense "$last" && exit 3
while [ "$1" != -o ]; do shift; done
echo "object of $(cat "$last") number $(wc -l < "$RUNS")" > "$2"
"""


class Bench:
    """A compiler that counts its runs, and Verilator's folder of two files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.include = folder, folder / "root" / "include"
        self.include.mkdir(parents=True)
        (self.include / "lib.cpp").write_text("lib")
        (self.include / "lib.h").write_text("header")
        (self.folder / "own.cpp").write_text("own")
        (self.folder / "runs").touch()
        compiler = self.folder / "compiler"
        compiler.write_text(COMPILER)
        compiler.chmod(0o755)

    @property
    def runs(self) -> int:
        return len((self.folder / "runs").read_text().splitlines())

    def compile(
        self, source: Path | None = None, *options: str, version: str = "1", **variables: str,
    ) -> str:
        """Compile as make does, through a shell; return what the object holds."""
        command = objcache(self.folder / "root")
        assert command is not None
        target = self.folder / "out.o"
        target.unlink(missing_ok=True)
        line = " ".join([
            command.replace("$$", "$"), str(self.folder / "compiler"), *options, "-c", "-o",
            str(target), str(source or self.include / "lib.cpp")])
        subprocess.run(line, shell=True, check=True, env={
            **os.environ, "RUNS": str(self.folder / "runs"), "VERSION": version, **variables})
        return target.read_text()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    # A name that make and a shell would read otherwise.
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "it's a $cache"))
    return Bench(tmp_path / "bench")


def test_it_is_compiled_again_when_anything_changes_and_only_then(bench):
    first = bench.compile()
    assert first == bench.compile() == "object of lib number 1\n"
    seen = {first, bench.compile(None, "-O2"), bench.compile(version="2"),
            bench.compile(CPATH="/elsewhere")}
    (bench.include / "lib.h").write_text("another header")
    seen.add(bench.compile())
    (bench.include / "lib.cpp").write_text("another lib")
    seen.add(bench.compile())
    assert len(seen) == bench.runs == 6
    for kept in Path(os.environ["STERNA_CACHE"]).rglob("*.o"):     # which cannot be read
        kept.unlink()
        kept.mkdir()
    assert bench.compile() not in seen


def test_what_does_not_compile_fails_each_time(bench):
    (bench.include / "lib.cpp").write_text("nonsense")
    for _ in range(2):
        with pytest.raises(subprocess.CalledProcessError) as error:
            bench.compile()
        assert error.value.returncode == 3
    assert bench.runs == 2


def test_other_sources_and_without_a_cache_all_are_always_compiled(bench, monkeypatch):
    own = bench.folder / "own.cpp"
    assert bench.compile(own) != bench.compile(own)
    monkeypatch.setenv("STERNA_CACHE", str(own))        # no folder
    assert bench.compile() != bench.compile()
    assert bench.runs == 4


def test_the_environment_names_it_unless_there_is_another(monkeypatch):
    monkeypatch.delenv("OBJCACHE", raising=False)
    assert "objcache.py" in verilator_environment()["OBJCACHE"]
    monkeypatch.setenv("OBJCACHE", "ccache")
    assert verilator_environment()["OBJCACHE"] == "ccache"
    monkeypatch.delenv("OBJCACHE")
    for name in ("STERNA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert "OBJCACHE" not in verilator_environment()


@pytest.mark.slow
def test_a_simulation_is_made_of_what_is_kept_and_kept_as_a_whole(tmp_path):
    source = tmp_path / "pass.v"
    source.write_text(f"// Made at {time.time_ns()}: not kept from an earlier run.\n" + """
module pass(input clk, input rst, input [7:0] a__payload, input a__valid, output a__ready,
            output [7:0] b__payload, output b__valid, input b__ready);
  assign a__ready = b__ready, b__payload = a__payload, b__valid = a__valid;
endmodule
""")
    job = Job(["a"], ["b"], 1, [Phase("one", {"a": [1, 2]}, {"b": 2})])
    for work in ("work", "again"):
        result, = run_on(Simulator.VERILATOR, [source], "pass", job, tmp_path / work)
        assert result.outputs == {"b": [1, 2]}
    command = objcache(Path(verilator_environment()["VERILATOR_ROOT"]))
    assert command is not None
    kept = {path.read_bytes() for path in Path(command.split("'")[9]).glob("*.o")}
    objects = list((tmp_path / "work").rglob("verilated*.o"))
    assert len(objects) >= 3
    assert all(path.read_bytes() in kept for path in objects)
    assert not list((tmp_path / "again").rglob("*.o"))
    # Another design of that name is another simulation.
    source.write_text(source.read_text().replace("b__payload = a", "b__payload = ~a"))
    result, = run_on(Simulator.VERILATOR, [source], "pass", job, tmp_path / "again")
    assert result.outputs == {"b": [254, 253]}
