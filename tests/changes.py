"""How far each test is from what has changed, along imports and names of files.

``pytest --changed COMMIT`` runs the tests that a change since can break, the nearest first.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["changed_files", "distances", "imports"]

PARTS = ("model", "export", "hw", "sim", "cli")
"""The folders of the code; each is a package of ``sterna``."""


def imports(
    root: Path, others: tuple[str, ...] = (), *, by_string: bool = False,
) -> Iterator[tuple[Path, Path]]:
    """Every file of the code with one that it imports, wherever in the file that is said, both as
    paths from the root.

    ``others``: further folders, whose files are imported by their own names. ``by_string``: what
    is imported when it is used, or run as a process, counts too.
    """
    files = {".".join(("sterna", *path.with_suffix("").parts)).removesuffix(".__init__"): path
             for path in _sources(root, *PARTS)}
    files |= {path.stem: path for path in _sources(root, *others)}
    homes = _homes(root)
    for path in files.values():
        for name in _names(ast.parse((root / path).read_text(encoding="utf-8")), by_string):
            while name in homes:
                name = homes[name]
            found = files.get(name) or files.get(name.rpartition(".")[0])
            if found not in (None, path):
                yield path, found


def _homes(root: Path) -> dict[str, str]:
    """Where the names come from that packages offer, by the stubs that list them."""
    homes = {}
    for top in ("root", *PARTS):
        package = "sterna" if top == "root" else f"sterna.{top}"
        stub = root / top / "__init__.pyi"
        for node in ast.walk(ast.parse(stub.read_text(encoding="utf-8") if stub.exists() else "")):
            if isinstance(node, ast.ImportFrom) and node.module:
                homes |= {f"{package}.{alias.name}": f"{package}.{node.module}.{alias.name}"
                          for alias in node.names}
    return homes


def _sources(root: Path, *folders: str) -> list[Path]:
    return sorted(path.relative_to(root) for top in folders for path in (root / top).rglob("*.py"))


def _names(tree: ast.Module, by_string: bool) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"
        elif by_string and isinstance(node, ast.Constant):
            yield str(node.value)


def changed_files(root: Path, commit: str) -> list[Path]:
    """The files that are not as they were in a commit, from the root; UsageError if there is no
    such commit."""
    def git(*command: str) -> list[str]:
        done = subprocess.run(["git", *command], cwd=root, check=False, capture_output=True,
                              text=True)
        if done.returncode:
            raise pytest.UsageError(f"--changed {commit}: git says: {done.stderr.splitlines()[0]}")
        return done.stdout.splitlines()
    return sorted(map(Path, {*git("diff", "--name-only", commit),
                             *git("ls-files", "--others", "--exclude-standard")}))


def distances(root: Path, changed: list[Path]) -> dict[Path, int]:
    """How many steps it is from each file that names a changed one, itself or by others.

    What is no Python is named by a text with its name, or with that of its folder in quotes.
    """
    users: dict[Path, set[Path]] = {}
    for user, used in imports(root, ("tests", "benchmarks", "verify", "examples"), by_string=True):
        users.setdefault(used, set()).add(user)
    texts = {path: (root / path).read_text(encoding="utf-8")
             for path in _sources(root, *PARTS, "tests")}
    for path in changed:
        if path.name == "conftest.py":      # every test has it; what it imports, only its users
            users[path] = {user for user in texts if user.name.startswith("test_")}
        if path.suffix != ".py":
            users[path] = {user for user, text in texts.items()
                           if path.name in text or f'"{path.parent.name}"' in text}
    far = dict.fromkeys(changed, 0)
    todo = [*changed]
    for path in todo:       # which grows
        for user in users.get(path, set()) - far.keys():
            far[user] = far[path] + 1
            todo.append(user)
    return far
