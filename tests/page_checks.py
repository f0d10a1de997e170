"""What every HTML page of a command has to be."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

__all__ = ["check_page", "drawings", "verdict_of"]

_EMPTY = {"meta", "link", "br", "img", "hr", "input"}


class _Page(HTMLParser):
    """Collects what a page refers to, and checks that its elements are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.classes: list[list[str]] = []
        self.references: list[str] = []
        self.names: list[str] = []
        self.outside: list[str] = []
        """Tables and drawings of a figure that are in no box that scrolls."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.references += [found[name] for name in ("src", "href", "xlink:href") if name in found]
        self.names += [found["id"]] if "id" in found else []
        wide = tag == "table" or (tag == "svg" and "figure" in self.open)
        if wide and not any("scroll" in each for each in self.classes):
            self.outside.append(tag)
        if tag not in _EMPTY:
            self.open.append(tag)
            self.classes.append(found.get("class", "").split())

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _EMPTY:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.classes.pop()


def drawings(page: str) -> list[str]:
    """The drawings of a page's figures."""
    return re.findall(r'<figure><div class="scroll">(<svg.*?</svg>)</div>', page, re.DOTALL)


def verdict_of(page: str) -> tuple[str, str]:
    """Outcome and large word of the only verdict, which comes before any heading but the first."""
    found = re.findall(r'<section class="verdict (\w+)"><p class="word">(.*?)</p>', page)
    assert len(found) == 1
    assert page.index("<section") < page.index("<h2>")
    return found[0]


def check_page(page: str) -> None:
    """A page that stands alone, has one verdict and a dark form, and scrolls only in boxes."""
    parser = _Page()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert parser.outside == []
    # Nothing is fetched: a reference is to a name in the page itself.
    assert all(each[1:] in parser.names for each in parser.references)
    assert len(parser.names) == len(set(parser.names))
    assert not re.search(r"https?:|@import|url\((?!#)|<script", page)
    verdict_of(page)
    assert "@media (prefers-color-scheme: dark)" in page
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert len(drawings(page)) == page.count("<figure>")
    for drawing in drawings(page):
        # Black ink would not be seen in the dark.
        assert "#000000" not in drawing
        assert ElementTree.fromstring(drawing).get("viewBox")
