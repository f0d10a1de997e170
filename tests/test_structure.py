"""The architecture as a rule: which folders may import which.

Run as a script it prints the layers, lowest first: a folder stands above all that it imports.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BELOW = {
    "model": {"model"}, "export": {"model", "export"}, "hw": {"model", "hw"},
    "sim": {"model", "export", "hw", "sim"}, "cli": {"model", "export", "hw", "sim", "cli"}}


def sources(root: Path) -> list[Path]:
    """Every Python file of the code, as a path from the root."""
    return sorted(path.relative_to(root) for top in BELOW for path in (root / top).rglob("*.py"))


def imports(root: Path) -> Iterator[tuple[Path, Path]]:
    """Every file of the code with one that it imports, wherever in the file that is said."""
    files = {".".join(("sterna", *path.with_suffix("").parts)).removesuffix(".__init__"): path
             for path in sources(root)}
    for path in files.values():
        for node in ast.walk(ast.parse((root / path).read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                found = files.get(name) or files.get(name.rpartition(".")[0])
                if found not in (None, path):
                    yield path, found


def layers(root: Path) -> list[list[Path]]:
    """The folders by layer, lowest first; a CycleError if folders import each other."""
    graph: dict[Path, set[Path]] = {path.parent: set() for path in sources(root)}
    for source, target in imports(root):
        if source.parent != target.parent:
            graph[source.parent].add(target.parent)
    depth: dict[Path, int] = {}
    for folder in TopologicalSorter(graph).static_order():
        depth[folder] = 1 + max((depth[each] for each in graph[folder]), default=-1)
    return [sorted(folder for folder in depth if depth[folder] == level)
            for level in range(max(depth.values()) + 1)]


def test_data_flows_one_way_through_the_parts() -> None:
    assert [f"{source} -> {target}" for source, target in imports(ROOT)
            if target.parts[0] not in BELOW[source.parts[0]]] == []


def test_no_folder_imports_back_up() -> None:
    assert sum(map(len, layers(ROOT))) == len({path.parent for path in sources(ROOT)})


def test_an_import_back_up_is_noticed(tmp_path: Path) -> None:
    for folder in ("hw/parts", "hw/units"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "hw/units/spec.py").write_text("from sterna.hw.parts.bits import to_bits\n")
    (tmp_path / "hw/parts/bits.py").write_text("x = 1\n")
    assert layers(tmp_path) == [[Path("hw/parts")], [Path("hw/units")]]
    (tmp_path / "hw/parts/bits.py").write_text(
        "def late():\n    from sterna.hw.units.spec import UnitSpec\n")
    with pytest.raises(CycleError):
        layers(tmp_path)


if __name__ == "__main__":
    for level, folders in enumerate(layers(ROOT)):
        print(level, *folders)
