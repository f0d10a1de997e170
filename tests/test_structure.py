"""The architecture as a rule: which folders may import which, and how large anything may be."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError
from pathlib import Path

import pytest
from import_graph import ROOT, TOPS, folder_graph, imports, layers, sources

BELOW = {
    "model": set(), "export": {"model"}, "hw": {"model"}, "sim": {"model", "export", "hw"},
    "cli": {"model", "export", "hw", "sim"}}
MOST_FILES, MOST_LINES, MOST_CODE_LINES, MOST_ARGUMENTS = 20, 350, 60, 4
FILES = sources()


def test_data_flows_one_way_through_the_parts() -> None:
    wrong = [str(each) for each in imports()
             if each.target.parts[0] not in {*BELOW[each.source.parts[0]], each.source.parts[0]}]
    assert wrong == []


def test_no_folder_imports_back_up() -> None:
    found = layers(folder_graph())
    assert sum(map(len, found)) == len({path.parent for path in FILES})


def test_an_import_back_up_is_noticed(tmp_path: Path) -> None:
    for folder in ("hw/parts", "hw/units", "model", "export", "sim", "cli"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "hw/units/spec.py").write_text("from sterna.hw.parts.bits import to_bits\n")
    (tmp_path / "hw/parts/bits.py").write_text("x = 1\n")
    assert layers(folder_graph(tmp_path)) == [[Path("hw/parts")], [Path("hw/units")]]
    (tmp_path / "hw/parts/bits.py").write_text(
        "def late():\n    from sterna.hw.units.spec import UnitSpec\n")
    with pytest.raises(CycleError):
        layers(folder_graph(tmp_path))


def test_no_folder_has_too_many_files() -> None:
    count = Counter(path.parent for path in FILES if path.name != "__init__.py")
    assert {str(name): n for name, n in count.items() if n > MOST_FILES} == {}


def test_no_file_is_too_long() -> None:
    lines = {str(path): len((ROOT / path).read_text(encoding="utf-8").splitlines())
             for path in (*FILES, *other_sources())}
    assert {path.suffix for path in other_sources()} == {".cpp", ".hpp", ".js"}
    assert {name: n for name, n in lines.items() if n > MOST_LINES} == {}


def other_sources() -> list[Path]:
    """The files of C++ and JavaScript."""
    return [path.relative_to(ROOT) for top in TOPS for kind in ("cpp", "hpp", "js")
            for path in (ROOT / top).rglob(f"*.{kind}")]


def functions(path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{path}:{node.name}", node


def code_lines(path: Path) -> set[int]:
    """Lines with code: neither blank, nor a comment, nor inside a string that stands alone."""
    text = (ROOT / path).read_text(encoding="utf-8")
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
               tokenize.ENDMARKER}
    lines = {line for token in tokenize.generate_tokens(io.StringIO(text).readline)
             if token.type not in skipped for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def test_no_function_is_too_long() -> None:
    found = {}
    for path in FILES:
        lines = code_lines(path)
        for name, node in functions(path):
            # The body alone: the options of a command are a list, not code to follow.
            length = sum(node.body[0].lineno <= line <= (node.end_lineno or 0) for line in lines)
            if length > MOST_CODE_LINES:
                found[name] = length
    assert found == {}


def test_components_take_their_parameters_as_one_object() -> None:
    found = {}
    for path in FILES:
        if path.parts[:2] in (("hw", "units"), ("hw", "parts"), ("hw", "core")):
            for name, node in functions(path):
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                if node.name == "__init__" and len(arguments) - 1 > MOST_ARGUMENTS:
                    found[name] = len(arguments) - 1
    assert found == {}
