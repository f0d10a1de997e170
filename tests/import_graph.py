"""The folders of the code and the imports between them, measured from the sources.

Run as a script it prints the layers, lowest first: a folder stands above all that it imports::

    python tests/import_graph.py [CHECKOUT]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOPS = ("model", "export", "hw", "sim", "cli")


@dataclass(frozen=True, slots=True)
class Import:
    """A file that imports another, both as paths from the root."""

    source: Path
    target: Path

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


def sources(root: Path = ROOT) -> list[Path]:
    """Every Python file of the code, as a path from the root."""
    return sorted(path.relative_to(root) for top in TOPS for path in (root / top).rglob("*.py"))


def imports(root: Path = ROOT) -> Iterator[Import]:
    """Every import of a file of the code by another, wherever in the file it stands."""
    files = {_module(path): path for path in sources(root)}
    for module, path in files.items():
        for node in ast.walk(ast.parse((root / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                found = files.get(name) or files.get(name.rpartition(".")[0])
                if found is not None and _module(found) != module:
                    yield Import(path, found)


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(("sterna", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def folder_graph(root: Path = ROOT) -> dict[Path, dict[Path, list[Import]]]:
    """For each folder the folders that it imports from, and by which imports."""
    graph: dict[Path, dict[Path, list[Import]]] = {
        path.parent: {} for path in sources(root)}
    for each in imports(root):
        if each.source.parent != each.target.parent:
            graph[each.source.parent].setdefault(each.target.parent, []).append(each)
    return graph


def layers(graph: Mapping[Path, Mapping[Path, object]]) -> list[list[Path]]:
    """The folders by layer, lowest first.

    Raises
    ------
    CycleError
        If folders import each other, directly or in a round.
    """
    depth: dict[Path, int] = {}
    for folder in TopologicalSorter(graph).static_order():
        depth[folder] = 1 + max((depth[each] for each in graph.get(folder, ())), default=-1)
    return [sorted(folder for folder in depth if depth[folder] == level)
            for level in range(max(depth.values()) + 1)]


def main(arguments: list[str]) -> int:
    """Print the layers; 1 if there are none because folders import each other."""
    root = Path(arguments[0]) if arguments else ROOT
    graph = folder_graph(root)
    files = sources(root)
    try:
        found = layers(graph)
    except CycleError as error:
        folders = error.args[1]
        print("folders that import each other in a round:")
        for later, earlier in pairwise(folders):
            print(f"  {earlier} -> {later}")
            print("\n".join(f"    {each}" for each in graph[earlier][later]))
        return 1
    print(f"{len(files)} files in {len(graph)} folders, {len(found)} layers, "
          f"{sum(map(len, graph.values()))} arrows between folders, none back up")
    for level, folders in enumerate(found):
        print(f"layer {level}")
        for folder in folders:
            count = sum(path.parent == folder for path in files)
            print(f"  {folder}/ ({count} files) <- {', '.join(map(str, sorted(graph[folder])))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
