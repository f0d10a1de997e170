"""The documents say what is true: links, names, code blocks and command lines."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from sterna.cli.main import app
from sterna.hw.catalog import unit_named
from sterna.model.config import ModelConfig
from sterna.model.training.settings import TrainSettings, parse_setting

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"),
                *(ROOT / "docs" / "api").glob("*.md"), *(ROOT / "examples").glob("*.md")])
CODE_FOLDERS = ("model", "export", "hw", "sim", "cli")
MARKS = {"README.md": "slow", "library.md": "long", "gateware.md": "long"}
# Files that docs/add-a-unit.md adds: tests/test_add_a_unit.py does, and runs its commands.
ADDED = re.findall(r"^```py\n# (hw/units/\w+)\.py$",
                   (ROOT / "docs" / "add-a-unit.md").read_text(encoding="utf-8"), re.M)
_ADDED_UNITS = {path.rpartition("/")[2] for path in ADDED}
_ADDED_MODULES = {f"sterna.{path.replace('/', '.')}" for path in ADDED}
COMMANDS = typer.main.get_command(app).commands


def blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of a page in one of the languages."""
    fence = rf"^```(?:{'|'.join(languages)})\n(.*?)^```$"
    return re.findall(fence, page.read_text(encoding="utf-8"), re.M | re.S)


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path, text: str) -> list[str]:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        place = page.parent / name if name else page
        if not place.exists() or (anchor and anchor not in anchors(place)):
            broken.append(target)
    return broken


def missing_names(text: str) -> list[str]:
    """Paths in backticks, and dotted names, that are not there."""
    folders = "|".join((*CODE_FOLDERS, "tests", "docs", "benchmarks", "typings"))
    missing = [path for path in re.findall(rf"`((?:{folders})/[\w./-]*)`", text)
               if not (ROOT / path).exists()]
    dotted = re.findall(rf"\bsterna\.(?:{'|'.join(CODE_FOLDERS)})(?:\.\w+)+", text)
    return missing + [name for name in dotted
                      if name not in _ADDED_MODULES and not is_defined(name)]


def is_defined(name: str) -> bool:
    """Whether a dotted name is a module or something in one."""
    parts = name.split(".")
    for length in range(len(parts), 1, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            if not hasattr(value, attribute):
                return False
            value = getattr(value, attribute)
        return True
    return False


def command_lines(block: str) -> list[list[str]]:
    """The words of every ``sterna`` and ``make`` call in a block of shell commands.

    If there are prompts, only lines with one are commands; the others are output.
    """
    lines = block.replace("\\\n", " ").splitlines()
    prompted = [line[2:] for line in lines if line.startswith("$ ")]
    calls = []
    for line in prompted or lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("();<>|&"):
                if words and Path(words[0]).name in ("sterna", "make"):
                    calls.append([Path(words[0]).name, *words[1:]])
                words = []
            else:
                words.append(word)
    return calls


def check_call(words: list[str]) -> None:
    """Parse a call as the command line itself would, without running it."""
    tool, *arguments = words
    if tool == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert set(arguments) <= set(targets), f"the Makefile has no {arguments}"
        return
    if not arguments or arguments[0] in ("--help", "--version"):
        return
    name, *options = arguments
    assert name in COMMANDS, f"there is no command sterna {name}"
    command = COMMANDS[name]
    while hasattr(command, "commands") and options != ["--help"]:
        name, *options = options
        assert name in command.commands, f"there is no command {name}"
        command = command.commands[name]
    if "--help" not in options:
        context = command.make_context(name, options)
        given = context.params
        if given.get("unit") not in (None, *_ADDED_UNITS):
            unit_named(given["unit"])
        if command is COMMANDS["train"]:
            settings = dict(map(parse_setting, given["given"] or ()))
            if given["mixer"] is not None:
                settings["mixer"] = given["mixer"]
            TrainSettings.of(ModelConfig.named(given["config"]), settings)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page, prose(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_and_modules_that_are_named_exist(page: Path) -> None:
    assert missing_names(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_command_lines_are_accepted_by_the_command_line(page: Path) -> None:
    for block in blocks(page, "console", "sh"):
        for words in command_lines(block):
            try:
                check_call(words)
            except Exception as error:
                reason = getattr(error, "format_message", error.__str__)()
                pytest.fail(f"{page.name}: {shlex.join(words)}: {reason}")


def test_architecture_names_every_folder_of_the_code_in_one_row() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = {path.parent.relative_to(ROOT).as_posix() for folder in CODE_FOLDERS
               for path in (ROOT / folder).rglob("*.py")}
    assert [name for name in sorted(folders) if f"`{name}/`" not in text] == []
    rows = [name for row in re.findall(r"^\| (`.*?/`) \|", text, re.M)
            for name in re.findall(r"`(.*?)/`", row)]
    assert len(rows) == len(set(rows)), "a folder has two rows"
    assert len(text.splitlines()) <= 200


PYTHON_BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}",
                 marks=[getattr(pytest.mark, MARKS[page.name])] if page.name in MARKS else [])
    for page in PAGES for number, block in enumerate(blocks(page, "python"), start=1)]


@pytest.mark.parametrize("block", PYTHON_BLOCKS)
def test_python_blocks_run_as_they_are(block: str, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block], cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr == ""


def test_the_path_in_the_library_page_is_short() -> None:
    block = blocks(ROOT / "docs" / "library.md", "python")[0]
    for step in ("train(", "quantize(", "export_onnx(", "emit_verilog(", "simulate("):
        assert step in block
    assert len(block.splitlines()) < 25


# The checks themselves ---------------------------------------------------------------


def test_a_broken_link_is_noticed() -> None:
    page = ROOT / "docs" / "numerics.md"
    text = "[a](onnx.md) [b](gone.md) [c](onnx.md#interface) [d](onnx.md#nothing) [e](#notation)"
    assert broken_links(page, text) == ["gone.md", "onnx.md#nothing"]


def test_a_wrong_name_is_noticed() -> None:
    text = ("`model/quantized/integer.py` `model/gone.py` sterna.model.quantized.integer.rs "
            "sterna.hw.units.mac.mac_params sterna.model.quantized.integer.gone "
            "sterna.hw.gone.MacParams")
    assert missing_names(text) == [
        "model/gone.py", "sterna.model.quantized.integer.gone", "sterna.hw.gone.MacParams"]


@pytest.mark.parametrize("line", [
    "sterna exprot tiny -o m.onnx", "sterna export tiny -o m.onnx --fast", "sterna export tiny",
    "sterna verilog tiny --unit gate -o build", "sterna export tiny --check some -o m.onnx",
    "make everything", "sterna data biuld a -o b", "sterna data info a --all",
    "sterna train --config nano --mixer '3*mlgru + window'",
])
def test_a_wrong_command_line_is_noticed(line: str) -> None:
    (words,) = command_lines(line)
    with pytest.raises(Exception, match=r"(?i)no |missing|one of|valid integer|layers"):
        check_call(words)


def test_command_lines_are_found_in_a_session() -> None:
    session = "$ make demo\nsterna demo: tiny\n$ .venv/bin/sterna info \\\n  tiny | head # short\n"
    assert command_lines(session) == [["make", "demo"], ["sterna", "info", "tiny"]]
    assert command_lines("cd build && sterna info 'a b'\n# make nothing\n") == [
        ["sterna", "info", "a b"]]
