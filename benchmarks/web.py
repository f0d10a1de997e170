"""Tokens per second of the web page in headless Chromium.

    python benchmarks/web.py

Writes the pages of the bundled models, opens them in turn and prints, for each, the median and
range over several runs, the sizes of the loaded files, and the same graph under Python's
onnxruntime. Needs chromium, chromedriver, npm and selenium, as the tests do.
"""

from __future__ import annotations

import gzip
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import pytest
from web_browser import Page, open_browser, serve

from sterna.export.runtime.generate import generate_tokens
from sterna.export.runtime.runtime import OnnxModel
from sterna.export.web.page import write_page
from sterna.model.quantized import load_model

PROMPT = "The for statement"
MODELS, TOKENS, RUNS = ("tiny", "tiny-c12", "micro"), 1000, 7


def page_rate(page: Page, address: str, tokens: int) -> float:
    """Tokens per second, as shown by the page, of a second text, after one to warm up."""
    page.open(address)
    for _ in range(2):
        page.set(prompt=PROMPT, tokens=tokens, temperature=0.7, seed=1)
        page.press("write")
        page.written()
    found = re.search(r"([\d,]+) tokens/s", page.text("status"))
    assert found is not None, page.text("status")
    return float(found[1].replace(",", ""))


def python_rate(graph: OnnxModel, tokens: int) -> float:
    """Tokens per second of the same graph under onnxruntime, one thread."""
    tokens_drawn = generate_tokens(graph, PROMPT, tokens=tokens, temperature=0.7, seed=1)
    started = time.perf_counter()
    for _ in tokens_drawn:
        pass
    return tokens / (time.perf_counter() - started)


def main() -> None:
    with tempfile.TemporaryDirectory() as base, open_browser(Path(base) / "profile") as page:
        rates: dict[str, list[tuple[float, float]]] = {name: [] for name in MODELS}
        for name in MODELS:
            write_page(load_model(name), Path(base) / name)
        for _ in range(RUNS):
            for name, found in rates.items():
                graph = OnnxModel(Path(base) / name / "model.onnx")
                with serve(Path(base) / name) as address:
                    found.append((page_rate(page, address, TOKENS), python_rate(graph, TOKENS)))
        for name, found in rates.items():
            files = {path.name: path.read_bytes() for path in (Path(base) / name).iterdir()}
            size = sum(map(len, files.values()))
            packed = sum(len(gzip.compress(data)) for data in files.values())
            browser, python = zip(*found, strict=True)
            print(f"{name}: {statistics.median(browser):,.0f} tokens/s in the page "
                  f"({min(browser):,.0f} to {max(browser):,.0f}), "
                  f"{statistics.median(python):,.0f} in Python "
                  f"({min(python):,.0f} to {max(python):,.0f}); model.onnx "
                  f"{len(files['model.onnx']):,} bytes, page {size / 1e6:.1f} MB, "
                  f"{packed / 1e6:.1f} MB gzipped")


if __name__ == "__main__":
    try:
        main()
    except pytest.skip.Exception as missing:    # raised by the tests' browser
        sys.exit(f"benchmarks/web.py: {missing}")
