"""The architecture as a rule: which folders may import which.

Run as a script it prints the layers, lowest first: a folder stands above all that it imports.
"""

from __future__ import annotations

import subprocess
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from changes import changed_files, distances, imports

ROOT = Path(__file__).parents[1]
BELOW = {
    "model": {"model"}, "export": {"model", "export"}, "hw": {"model", "hw"},
    "sim": {"model", "export", "hw", "sim"}, "cli": {"model", "export", "hw", "sim", "cli"}}


def layers(root: Path) -> list[list[Path]]:
    """The folders by layer, lowest first; a CycleError if folders import each other."""
    graph: dict[Path, set[Path]] = {}
    for source, target in imports(root):
        if source.parent != target.parent:
            graph.setdefault(source.parent, set()).add(target.parent)
    depth: dict[Path, int] = {}
    for folder in TopologicalSorter(graph).static_order():
        depth[folder] = 1 + max((depth[each] for each in graph.get(folder, ())), default=-1)
    return [sorted(folder for folder in depth if depth[folder] == level)
            for level in range(max(depth.values()) + 1)]


def test_data_flows_one_way_through_the_parts() -> None:
    assert [f"{source} -> {target}" for source, target in imports(ROOT)
            if target.parts[0] not in BELOW[source.parts[0]]] == []


def test_no_folder_imports_back_up() -> None:
    assert {path.parent for pair in imports(ROOT) for path in pair} == {
        folder for layer in layers(ROOT) for folder in layer}


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


@pytest.mark.needs("git")
def test_the_tests_of_a_change_are_those_that_reach_it_the_nearest_first(tmp_path: Path) -> None:
    for name, text in {
        "hw/parts/bits.py": "x = 1\n", "hw/other.py": "y = 1\n",
        "hw/unit.py": "def late():\n    from sterna.hw.parts.bits import x\n",
        "hw/__init__.pyi": "from .unit import late as late\n",
        "root/__init__.pyi": "from .hw import late as late\n",
        "docs/page.md": "", "tests/conftest.py": "",
        "tests/helper.py": "import sterna\nsterna.late()\n",
        "tests/test_bits.py": "from sterna.hw.parts import bits\n",
        "tests/test_lazy.py": "import helper\n", "tests/test_other.py": "import sterna.hw.other\n",
        "tests/test_pages.py": 'PAGES = ROOT / "docs"\n',
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def run(*command: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *command],
                       cwd=tmp_path, check=True, capture_output=True)
    run("init")
    run("add", ".")
    run("commit", "-m", "all")
    for name in ("hw/parts/bits.py", "docs/new.md"):
        (tmp_path / name).write_text("z = 2\n")
    far = distances(tmp_path, changed_files(tmp_path, "HEAD"))
    assert {path.name: steps for path, steps in far.items() if path.name.startswith("test_")} == {
        "test_bits.py": 1, "test_lazy.py": 3, "test_pages.py": 1}
    far = distances(tmp_path, [Path("tests/conftest.py")])
    assert len(far) == 5
    with pytest.raises(pytest.UsageError, match="--changed gone: git says: fatal"):
        changed_files(tmp_path, "gone")


if __name__ == "__main__":
    for level, folders in enumerate(layers(ROOT)):
        print(level, *folders)
