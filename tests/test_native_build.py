"""Building the compiled operators: once, without half-made files, with clear errors."""

import json
import shutil
from pathlib import Path

import pytest

from sterna.cli.main import main
from sterna.export.native.build import MissingCompilerError, OpsError, build_ops


def test_a_library_is_built_once(native_ops: Path) -> None:
    before = native_ops.stat().st_mtime_ns
    told: list[int] = []
    assert build_ops(
        str(native_ops.parent), progress=lambda done, total: told.append(done)) == native_ops
    assert not told
    assert native_ops.stat().st_mtime_ns == before


def test_without_a_compiler_a_library_that_is_there_will_do(
    native_ops: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(
            MissingCompilerError, match=r"g\+\+ is not installed.*apt-get install g\+\+.*slower"):
        build_ops(tmp_path)
    shutil.copy(native_ops, tmp_path)
    assert build_ops(tmp_path) == tmp_path / native_ops.name


def test_sources_that_do_not_compile_leave_nothing(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "broken.cpp").write_text("int main( { return 0; }")
    with pytest.raises(OpsError, match=r"g\+\+ failed on the operators \(broken\.cpp\): .*error"):
        build_ops(tmp_path / "out", sources=sources)
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(OpsError, match=r"holds no C\+\+ sources"):
        build_ops(tmp_path / "out", sources=tmp_path / "out")


def test_the_command_says_where_and_which_kernel(
    native_ops: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["build-ops", "-o", str(native_ops.parent), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["library"] == str(native_ops)
    assert found["kernel"]
    arguments = ["generate", "tiny", "--prompt", "The ", "--tokens", "20"]
    assert main(arguments) == 0
    plain = capsys.readouterr().out
    for option in (["--ops"], ["--ops-library", str(native_ops)]):
        assert main([*arguments, *option]) == 0
        assert capsys.readouterr().out == plain
