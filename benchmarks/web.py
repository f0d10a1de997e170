"""Tokens per second of the web page in headless Chromium, beside onnxruntime in Python.

    python benchmarks/web.py

Writes the pages of bundled models, opens them in turn with an empty cache, and prints for each the
median and range over several runs of the page and of the exact graph in Python, one thread each;
the time from opening the page to its first text; and the size of the folder. Needs chromium,
chromedriver and selenium, as the tests do.
"""

from __future__ import annotations

import gzip
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import pytest
from web_browser import Page, open_browser, serve

from sterna.export.forms.forms import build
from sterna.export.runtime.generate import generate_tokens
from sterna.export.runtime.runtime import OnnxModel
from sterna.export.web.page import write_page
from sterna.model.quantized import load_model

PROMPT = "The for statement"
MODELS, TOKENS, RUNS = ("tiny", "tiny-c12", "micro"), 1000, 7
FIRST_TEXT = """
const done = arguments[0], form = document.getElementById("form");
const watch = () => {
  if (document.getElementById("written").textContent) return done(performance.now());
  if (document.getElementById("status").textContent === "Ready.") form.requestSubmit();
  setTimeout(watch, 1);
};
watch();
"""
"""Presses Write as soon as it can be; milliseconds from the navigation to the first text."""


def page_rates(page: Page, address: str) -> tuple[float, float]:
    """Milliseconds to the first text, and tokens per second, as shown by the page, of a second one
    after one to warm up."""
    page.driver.get(address)
    first = page.driver.execute_async_script(FIRST_TEXT)
    page.written()
    for _ in range(2):
        page.set(prompt=PROMPT, tokens=TOKENS, temperature=0.7, seed=1)
        page.press("write")
        page.written()
    found = re.search(r"([\d,]+) tokens/s", page.text("status"))
    assert found is not None, page.text("status")
    return first, float(found[1].replace(",", ""))


def python_rate(graph: OnnxModel) -> float:
    """Tokens per second of the exact graph under onnxruntime, one thread."""
    tokens_drawn = generate_tokens(graph, PROMPT, tokens=TOKENS, temperature=0.7, seed=1)
    started = time.perf_counter()
    for _ in tokens_drawn:
        pass
    return TOKENS / (time.perf_counter() - started)


def spread(values: Sequence[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def main() -> None:
    with tempfile.TemporaryDirectory() as base, open_browser(Path(base) / "profile") as page:
        rates: dict[str, list[tuple[float, float, float]]] = {name: [] for name in MODELS}
        for name in MODELS:
            write_page(load_model(name), Path(base) / name)
        graphs = {name: OnnxModel(build(load_model(name), one_token=True)) for name in MODELS}
        for _ in range(RUNS):
            for name, found in rates.items():
                with serve(Path(base) / name) as address:       # another origin each time
                    found.append((*page_rates(page, address), python_rate(graphs[name])))
        for name, found in rates.items():
            files = [path.read_bytes() for path in (Path(base) / name).iterdir()]
            size, packed = (sum(map(len, each)) for each in (files, map(gzip.compress, files)))
            first, browser, python = zip(*found, strict=True)
            ratio = statistics.median(each[1] / each[2] for each in found)
            print(f"{name}: {spread(browser)} tokens/s in the page, {spread(python)} in Python, "
                  f"{ratio:.2f} times; first text after {spread(first)} ms; folder {size:,} bytes, "
                  f"{packed:,} gzipped")


if __name__ == "__main__":
    try:
        main()
    except pytest.skip.Exception as missing:    # raised by the tests' browser
        sys.exit(f"benchmarks/web.py: {missing}")
