"""What README shows: the output of its commands, and pictures of pages, made anew.

    .venv/bin/python tests/shown.py

takes some minutes, and Chromium for the pictures. A picture holds the text of its page, so
that a test can compare it. Figures that were measured have commands of their own in the documents.
"""

from __future__ import annotations

import base64
import html
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, PngImagePlugin

if TYPE_CHECKING:
    from web_browser import Page

__all__ = ["DEMO", "README", "agree", "html_text", "picture_text", "run", "with_transcripts"]

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DEMO = "sterna demo"
"""What prints the only block of README that is a text; ``make demo`` calls it."""
_WIDTH = 820
_COLOURS = 64
# With the spaces before it; a bar in a chart is a number, too.
_ANY_NUMBER = re.compile(r" *(?:[\d,.]+|[█nrp]{3,})")


def with_transcripts(text: str, of: Callable[[str, list[str]], list[str]]) -> str:
    """A page whose every transcript is replaced by what ``of`` makes of its command and lines."""
    def block(found: re.Match[str]) -> str:
        lines = found[2].splitlines()
        if found[1] == "text":
            made = of(DEMO, lines)
        else:
            starts = [at for at, line in enumerate(lines) if line.startswith("$ ")]
            made = []
            for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
                made += [lines[start], *of(lines[start][2:], lines[start + 1:end])]
        return "\n".join([f"```{found[1]}", *made, "```"])
    return re.sub(r"^```(console|text)\n(.*?)^```$", block, text, flags=re.M | re.S)


def run(command: str, folder: Path) -> list[str]:
    """The lines that a command prints, with the programs of this Python on PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(["bash", "-c", command], cwd=folder, env={**os.environ, "PATH": path},
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stderr)
    return [line.rstrip() for line in done.stdout.splitlines()]


def without_times(line: str) -> str:
    """A line but for the seconds at the end of a row."""
    return re.sub(r" +\d+\.\d$", " seconds", line.rstrip())


def agree(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """Whether a transcript is what was printed; three dots stand for any lines, or none."""
    pattern = "".join("(?:.*\n)*?" if line == "..." else re.escape(without_times(line)) + "\n"
                      for line in shown)
    lines = "".join(f"{without_times(line)}\n" for line in printed)
    return re.fullmatch(pattern, lines) is not None


def _renewed(command: str, shown: list[str], printed: list[str]) -> list[str]:
    """A transcript with the lines that are printed now; what three dots left out stays out."""
    if "..." not in shown:
        return printed
    made, rest = [], iter(printed)
    for line in shown:
        found = line if line == "..." else next(
            (each for each in rest if _ANY_NUMBER.sub("", each) == _ANY_NUMBER.sub("", line)), None)
        if found is None:
            sys.exit(f"{command} no longer prints {line!r}: write its transcript by hand")
        made.append(found)
    return made


def html_text(page: str) -> str:
    """The text of a page, a row or paragraph a line, without times and versions."""
    page = re.sub(r"<(style|script|svg)\b.*?</\1>", "", page.partition("<h2>Versions")[0],
                  flags=re.S)
    page = re.sub(r"</(tr|p|h\d|div|li|pre|title|table|dl|section)>|<br>", "\n", page)
    text = html.unescape(re.sub(r"<[^>]+>", " ", page))
    lines = (without_times(" ".join(line.split())) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def picture_text(picture: Path) -> str:
    """The text of the page that a picture is of."""
    with Image.open(picture) as image:
        return str(image.info["page"])


def _shoot(page: Page, picture: Path, text: str, height: int) -> None:
    """Take a picture of the page that is open, as far down as is told."""
    taken = page.driver.execute_cdp_cmd("Page.captureScreenshot", {
        "captureBeyondViewport": True,
        "clip": {"x": 0, "y": 0, "width": _WIDTH, "height": height, "scale": 1}})
    information = PngImagePlugin.PngInfo()
    information.add_itxt("page", text, zip=True)
    Image.open(io.BytesIO(base64.b64decode(taken["data"]))).convert("RGB").quantize(_COLOURS).save(
        picture, optimize=True, pnginfo=information)


def main() -> None:
    from web_browser import open_browser, serve
    os.environ["STERNA_CACHE"] = "0"    # times are those of a first run
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def renew(command: str, shown: list[str]) -> list[str]:
            print(command, flush=True)
            return _renewed(command, shown, run(command, folder))
        README.write_text(with_transcripts(README.read_text(encoding="utf-8"), renew),
                          encoding="utf-8")
        report = folder / "build" / "demo" / "report.html"
        with open_browser(folder / "profile") as page:
            page.screen(_WIDTH, 10_000)     # a bar for scrolling would change the lines
            page.driver.get(report.as_uri())
            end = page.script("return [...document.querySelectorAll('h2')].find(each => "
                              "each.textContent.startsWith('What rounding'))"
                              ".getBoundingClientRect().top + scrollY")
            _shoot(page, ROOT / "docs" / "report.png",
                   html_text(report.read_text(encoding="utf-8")), int(end))
            run("sterna web tiny -o page", folder)
            page.screen(_WIDTH, 900)
            with serve(folder / "page") as address:
                page.open(address)
                page.press("write")
                page.written()
                _shoot(page, ROOT / "docs" / "web.png", page.shown(),
                       page.script("return document.documentElement.scrollHeight"))


if __name__ == "__main__":
    main()
