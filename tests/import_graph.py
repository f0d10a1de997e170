"""The folders of the code and the imports between them, measured from the sources.

Run as a script it prints the layers, lowest first: a folder stands above all that it imports::

    python tests/import_graph.py [CHECKOUT]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parents[1]
TOPS = ("model", "export", "hw", "sim", "cli")
Graph: TypeAlias = dict[Path, dict[Path, list[str]]]


def sources(root: Path = ROOT) -> list[Path]:
    """Every Python file of the code, as a path from the root."""
    return sorted(path.relative_to(root) for top in TOPS for path in (root / top).rglob("*.py"))


def imports(root: Path = ROOT) -> Iterator[tuple[Path, Path]]:
    """Every file of the code with one that it imports, wherever in the file that is said."""
    files = {_module(path): path for path in sources(root)}
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


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(("sterna", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def folder_graph(root: Path = ROOT) -> Graph:
    """For each folder the folders that it imports from, and by which imports."""
    graph: Graph = {path.parent: {} for path in sources(root)}
    for source, target in imports(root):
        if source.parent != target.parent:
            graph[source.parent].setdefault(target.parent, []).append(f"{source} -> {target}")
    return graph


def layers(graph: Graph) -> list[list[Path]]:
    """The folders by layer, lowest first; a CycleError if folders import each other."""
    depth: dict[Path, int] = {}
    for folder in TopologicalSorter(graph).static_order():
        depth[folder] = 1 + max((depth[each] for each in graph.get(folder, ())), default=-1)
    return [sorted(folder for folder in depth if depth[folder] == level)
            for level in range(max(depth.values()) + 1)]


def main(arguments: list[str]) -> int:
    """Print the layers; 1 if there are none because folders import each other."""
    root = Path(arguments[0]) if arguments else ROOT
    graph, files = folder_graph(root), sources(root)
    try:
        found = layers(graph)
    except CycleError as error:
        print("folders that import each other in a round:")
        for later, earlier in pairwise(error.args[1]):
            print(f"  {earlier} -> {later}", *graph[earlier][later], sep="\n    ")
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
