"""The documents say what is true: links, names, code blocks, command lines, README and site."""

from __future__ import annotations

import ast
import html
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from shown import DEMO, README, agree, run, with_transcripts

from sterna.cli.main import app
from sterna.hw.catalog import unit_named
from sterna.model.config import ModelConfig
from sterna.model.torch.training.recipe import TrainSettings, parse_setting


def public_names(module: str) -> list[str]:
    return list(getattr(importlib.import_module(module), "__all__", ()))


ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"),
                *(ROOT / "docs" / "api").glob("*.md"), *(ROOT / "examples").glob("*.md"),
                *(ROOT / "benchmarks").glob("*.md")])
SITE = ROOT / "docs" / "site"
API_PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
MODULES = [name for page in API_PAGES
           for name in re.findall(r"automodule:: (\S+)", page.read_text(encoding="utf-8"))]
CODE_FOLDERS = ("model", "export", "hw", "sim", "cli")
OFFERED = {name: public_names(name) for name in (
    "sterna", "sterna.model", "sterna.export", "sterna.hw", "sterna.sim")}
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
    folders = "|".join((*CODE_FOLDERS, "tests", "docs", "benchmarks", "verify", "typings"))
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
        if arguments[:1] == ["-C"]:
            return      # the Makefile of a folder that Sterna wrote
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
def test_links_lead_somewhere_and_what_is_named_exists(page: Path) -> None:
    assert broken_links(page, prose(page)) == []
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


def test_every_benchmark_is_listed_with_the_page_that_names_it() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(\w+\.py)` \|.*\]\(\.\./(docs/[\w-]+\.md)\) \|$", text, re.M))
    for script, page in listed.items():
        assert f"benchmarks/{script}" in (ROOT / page).read_text(encoding="utf-8"), script
    parts = re.findall(r"`(\w+\.py)`", text.partition("Parts of these")[2])
    assert {*listed, *parts} == {path.name for path in (ROOT / "benchmarks").glob("*.py")}



def test_architecture_names_every_folder_of_the_code_in_one_row() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = {path.parent.relative_to(ROOT).as_posix() for folder in CODE_FOLDERS
               for path in (ROOT / folder).rglob("*.py")}
    assert [name for name in sorted(folders) if f"`{name}/`" not in text] == []
    rows = [name for row in re.findall(r"^\| (`.*?/`) \|", text, re.M)
            for name in re.findall(r"`(.*?)/`", row)]
    assert len(rows) == len(set(rows)), "a folder has two rows"
    assert len(text.splitlines()) <= 200


# Each with the text behind it, which is what it prints.
_PYTHON = re.compile(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.M | re.S)
PYTHON_BLOCKS = [
    pytest.param(*found.groups(), id=f"{page.name}-{number}",
                 marks=[getattr(pytest.mark, MARKS[page.name])] if page.name in MARKS else [])
    for page in PAGES
    for number, found in enumerate(_PYTHON.finditer(page.read_text(encoding="utf-8")), start=1)]


@pytest.mark.parametrize(("block", "shown"), PYTHON_BLOCKS)
def test_python_blocks_run_as_they_are(block: str, shown: str | None, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block], cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr == ""
    assert shown in (None, done.stdout)


def test_the_path_in_the_library_page_is_short() -> None:
    block = blocks(ROOT / "docs" / "library.md", "python")[0]
    for step in ("train(", "quantize(", "export_onnx(", "emit_verilog(", "simulate("):
        assert step in block
    assert len(block.splitlines()) < 25


# The checks themselves ---------------------------------------------------------------


def test_the_checks_notice_what_is_wrong(tmp_path: Path) -> None:
    page = ROOT / "docs" / "numerics.md"
    text = "[a](onnx.md) [b](gone.md) [c](onnx.md#interface) [d](onnx.md#nothing) [e](#notation)"
    assert broken_links(page, text) == ["gone.md", "onnx.md#nothing"]
    text = ("`model/quantized/integer.py` `model/gone.py` sterna.model.quantized.integer.rs "
            "sterna.hw.units.mac.mac_params sterna.model.quantized.integer.gone "
            "sterna.hw.gone.MacParams")
    assert missing_names(text) == [
        "model/gone.py", "sterna.model.quantized.integer.gone", "sterna.hw.gone.MacParams"]
    (tmp_path / "a.html").write_text('<p id="x"><a href="#x"><a href="#y"><a href="b.html">')
    assert dead_ends(tmp_path) == ["a.html: #y", "a.html: b.html"]


@pytest.mark.parametrize("line", [
    "sterna exprot tiny -o m.onnx", "sterna export tiny -o m.onnx --fast", "sterna export tiny",
    "sterna verilog tiny --unit gate -o build", "sterna export tiny --check some -o m.onnx",
    "make everything", "sterna data biuld a -o b", "sterna data info a --all",
    "sterna train --config nano --mixer '3*mlgru + window'",
])
def test_a_wrong_command_line_is_noticed(line: str) -> None:
    # In a session, where lines without a prompt are output, and in a script.
    session = f"$ {line} | head # short\nsterna demo: tiny\n"
    for block in (session, f"cd build && {line}\n# make nothing\n"):
        (words,) = command_lines(block)
        assert words == shlex.split(line)
        with pytest.raises(Exception, match=r"(?i)no |missing|one of|valid integer|layers"):
            check_call(words)


# README and site ----------------------------------------------------------------------


def test_readme_opens_with_what_it_is_a_picture_a_command_and_its_output() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    places = [text.index(mark) for mark in (
        "Sterna takes a", "![", "make demo", "```text", "## What you get")]
    assert places == sorted(places)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_readme_commands_print_what_it_shows(tmp_path: Path) -> None:
    commands = []

    def check(command: str, lines: list[str]) -> list[str]:
        commands.append(command)
        if command != DEMO:     # test_packaging.py runs it
            printed = run(command, tmp_path)
            assert agree(lines, printed), (command, printed, "tests/shown.py")
        return lines
    text = README.read_text(encoding="utf-8")
    assert with_transcripts(text, check) == text
    assert len(commands) >= 9


@pytest.mark.parametrize("line", ["tiny     12,000  4.7", "text", "2.0 cycles"])
def test_a_line_that_is_no_longer_printed_is_noticed(line: str) -> None:
    printed = ["text", "tiny     12,000  3.5", "2.0 cycles"]
    shown = ["text", "tiny     12,000  4.7", "2.0 cycles"]
    assert agree(shown, printed)
    assert agree(["...", line, "..."], printed)
    assert not agree([each for each in shown if each != line], printed)
    assert not agree([each.replace(line, line.replace("2", "3") + "!") for each in shown], printed)


def listed(contents: str) -> list[str]:
    """The pages that the blocks of a list of contents name."""
    blocks = re.findall(r"^```\{toctree\}\n(.*?)^```$", contents, re.M | re.S)
    return [line for block in blocks for line in block.splitlines()
            if line and not line.startswith(":")]


def undocumented(module: str) -> list[str]:
    """Public classes and functions without a docstring: autodoc would leave them out."""
    found = importlib.import_module(module)
    values = {name: getattr(found, name) for name in public_names(module)}
    return [name for name, value in values.items()
            if (inspect.isclass(value) or inspect.isfunction(value))
            and (not value.__doc__ or value.__doc__.startswith(f"{name}("))]


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", SITE, source, out],
        capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})


def dead_ends(site: Path) -> list[str]:
    """Links inside a built site to a page, a picture or an anchor that is not there."""
    pages = {path: path.read_text(encoding="utf-8") for path in site.resolve().rglob("*.html")}
    anchors = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()}
    found = []
    for path, text in pages.items():
        for target in map(html.unescape, re.findall(r'(?:href|src|srcset)="([^"]+)"', text)):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            place = (path.parent / name.split("?")[0]).resolve() if name else path
            if not place.exists() or (anchor and anchor not in anchors.get(place, ())):
                found.append(f"{path.name}: {target}")
    return found


def test_every_page_is_in_the_contents_once() -> None:
    pages = [path.relative_to(ROOT).with_suffix("").as_posix() for path in PAGES
             if path != ROOT / "README.md"]
    assert sorted(listed((SITE / "contents.md").read_text(encoding="utf-8"))) == sorted(pages)


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_of_the_api_pages_is_there_with_a_docstring(module: str) -> None:
    assert importlib.import_module(module).__doc__
    assert undocumented(module) == []


def imported(code: str) -> Iterator[tuple[str, str]]:
    """Every name of Sterna that code asks a module for, with that module."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name.rpartition(".")[::2] for alias in node.names
                        if alias.name.startswith("sterna."))
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name) for alias in node.names
                        if node.module.partition(".")[0] == "sterna")
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "sterna":
            yield "sterna", node.attr


def test_pages_and_examples_ask_the_packages_alone() -> None:
    """A page on a change inside a package has its files, which import as all of its files do."""
    codes = {page: "".join(blocks(page, "python", "py"))
             for page in PAGES if page.name != "add-a-unit.md"}
    codes |= {path: path.read_text(encoding="utf-8") for path in (ROOT / "examples").rglob("*.py")}
    asked = [(path.name, *each) for path, code in codes.items() for each in imported(code)]
    assert len(asked) > 100
    assert [each for each in asked if each[2] not in OFFERED.get(each[1], ())] == []


@pytest.mark.long
def test_the_site_is_built_without_a_warning_and_holds_every_public_name(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path / "site")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "site" / "index.html").exists()
    assert dead_ends(tmp_path / "site") == []
    shown = "".join((tmp_path / "site" / "docs" / "api" / f"{page.stem}.html")
                    .read_text(encoding="utf-8") for page in API_PAGES)
    names = [(module, name) for module in MODULES for name in public_names(module)
             if f"{module}.{name}" not in MODULES]
    ids = {place for place in names if f'id="{".".join(place)}"' in shown}
    assert len(ids) > 80
    found = {id(getattr(importlib.import_module(module), name)) for module, name in ids}
    assert [(module, name) for module, name in names if (module, name) not in ids
            and id(getattr(importlib.import_module(module), name)) not in found] == []


@pytest.mark.slow
def test_a_broken_link_stops_the_build_and_a_folder_does_not(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "README.md").write_text("# Sterna\n\n[a page](gone.md), [a folder](code/)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    assert "gone.md" in done.stderr
    assert "code/" not in done.stderr
