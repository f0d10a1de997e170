"""The documentation site: every page is in its contents, every public name in its API pages."""

from __future__ import annotations

import html
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs" / "site"
API_PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
MODULES = [name for page in API_PAGES
           for name in re.findall(r"automodule:: (\S+)", page.read_text(encoding="utf-8"))]


def listed(contents: str) -> list[str]:
    """The pages that the blocks of a list of contents name."""
    blocks = re.findall(r"^```\{toctree\}\n(.*?)^```$", contents, re.M | re.S)
    return [line for block in blocks for line in block.splitlines()
            if line and not line.startswith(":")]


def public_names(module: str) -> list[str]:
    return list(getattr(importlib.import_module(module), "__all__", ()))


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
    pages = [path.relative_to(ROOT).with_suffix("").as_posix()
             for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *API_PAGES,
                          *(ROOT / "examples").glob("*.md"))
             if path != ROOT / "README.md"]
    assert sorted(listed((SITE / "contents.md").read_text(encoding="utf-8"))) == sorted(pages)


def test_only_the_blocks_of_the_contents_count() -> None:
    assert listed("docs/a\n```{toctree}\n:hidden:\n\ndocs/b\nC\n```\ndocs/d\n") == ["docs/b", "C"]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_of_the_api_pages_is_there_with_a_docstring(module: str) -> None:
    assert importlib.import_module(module).__doc__
    assert undocumented(module) == []


def test_a_name_without_a_docstring_is_noticed() -> None:
    # A dataclass without one is given its signature, and a function of a test has none.
    assert undocumented("sterna.cli.main") == []
    assert undocumented("sterna.hw.units.mac.mac_params") == []
    module = sys.modules[__name__]
    module.__all__ = ["public_names", "listed"]
    try:
        assert undocumented(__name__) == ["public_names"]
    finally:
        del module.__all__


def test_what_the_library_page_imports_has_a_place_in_the_api_pages() -> None:
    text = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^from (sterna\.\S+) import", text, re.M)) - set(MODULES) == set()


def test_a_dead_end_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p id="x"><a href="#x"><a href="#y"><a href="b.html">')
    assert dead_ends(tmp_path) == ["a.html: #y", "a.html: b.html"]


@pytest.mark.long
def test_the_site_is_built_without_a_warning_and_holds_every_public_name(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path / "site")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "site" / "index.html").exists()
    assert dead_ends(tmp_path / "site") == []
    shown = "".join((tmp_path / "site" / "docs" / "api" / f"{page.stem}.html")
                    .read_text(encoding="utf-8") for page in API_PAGES)
    names = [(module, name) for module in MODULES for name in public_names(module)]
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
