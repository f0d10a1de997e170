"""Pictures of HTML pages in Chromium: light, dark, and as wide as a small phone.

    python tests/screenshots.py -o build/shots build/demo/report.html

writes ``report-light.png``, ``report-dark.png``, ``report-phone.png`` and
``report-phone-dark.png``, each of the whole page.
"""

from __future__ import annotations

import argparse
import base64
import tempfile
from pathlib import Path

from web_browser import Page, open_browser

SCREENS = {"light": (1200, False), "dark": (1200, True), "phone": (360, False),
           "phone-dark": (360, True)}


def shoot(page: Page, file: Path, folder: Path) -> list[Path]:
    """Take all pictures of a page, which is a file."""
    written = []
    for name, (width, dark) in SCREENS.items():
        page.screen(width, 900, dark=dark)
        page.driver.get(file.resolve().as_uri())
        height = page.script("return document.documentElement.scrollHeight")
        taken = page.driver.execute_cdp_cmd("Page.captureScreenshot", {
            "captureBeyondViewport": True,
            "clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}})
        target = folder / f"{file.stem}-{name}.png"
        target.write_bytes(base64.b64decode(taken["data"]))
        written.append(target)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.html")
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="FOLDER")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile, open_browser(Path(profile)) as page:
        for file in options.files:
            for target in shoot(page, file, options.output):
                print(target)


if __name__ == "__main__":
    main()
