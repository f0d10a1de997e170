"""A headless Chromium, and a static web server, for the tests of the page."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    # Offline but for the test's own server: the page must need nothing else.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--disable-dev-shm-usage",
    "--window-size=1100,900")


def missing(reason: str) -> None:
    """Skip for want of a tool; fail where the tools have to be there (CI)."""
    if os.environ.get("STERNA_REQUIRE_BROWSER"):
        pytest.fail(f"{reason}, and STERNA_REQUIRE_BROWSER is set")
    pytest.skip(reason)


class Page:
    """The page in a browser, and what a person does with it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        """Open the page, and wait until it can be used, also without a network."""
        self.driver.get(address)
        self.loaded()
        self.wait(lambda: self.text("kept"))

    def text(self, name: str) -> str:
        """All text of an element, as it is in the document."""
        return str(self.driver.execute_script(
            "return document.getElementById(arguments[0]).textContent", name))

    def script(self, code: str, *arguments: object) -> Any:
        return self.driver.execute_script(code, *arguments)

    def set(self, **fields: object) -> None:
        """Give fields values, as if typed."""
        for name, value in fields.items():
            self.script("document.getElementById(arguments[0]).value = arguments[1]",
                        name, str(value))

    def press(self, name: str) -> None:
        self.driver.find_element(By.ID, name).click()

    def key(self, *keys: str) -> None:
        """Press keys where the focus is; all are held until the last."""
        chain = ActionChains(self.driver)
        for each in keys[:-1]:
            chain.key_down(each)
        chain.send_keys(keys[-1])
        for each in keys[:-1]:
            chain.key_up(each)
        chain.perform()

    def tab_to(self, name: str) -> None:
        """Press Tab until an element has the focus, at most once around the page."""
        for _ in range(12):
            if self.script("return document.activeElement.id") == name:
                return
            self.key(Keys.TAB)
        raise AssertionError(f"Tab does not lead to {name}")

    def wait(self, done: Callable[[], object], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, (
                f"not within {seconds} s; status {self.text('status')!r}, "
                f"error {self.text('error')!r}")
            time.sleep(0.02)

    def written(self) -> str:
        """Wait for the end of the writing; the text, without the prompt."""
        self.wait(lambda: self.text("status").startswith(("Done", "Stopped"))
                  or self.text("error"))
        assert self.text("error") == ""
        return self.text("written")

    def give(self, name: str, path: Path) -> None:
        """Choose a file for a field."""
        self.driver.find_element(By.ID, name).send_keys(str(path))

    def loaded(self) -> None:
        """Wait until a model is ready, or was refused."""
        self.wait(lambda: self.text("status") == "Ready." or self.text("error"))

    def shown(self) -> str:
        """All text that can be seen, but for how fast it was written."""
        seen = " ".join(str(self.script("return document.body.innerText")).split())
        return re.sub(r" [\d,]+ tokens/s", "", seen)

    def screen(self, width: int, height: int, *, dark: bool = False, scale: int = 1) -> None:
        """Take the size of a screen, its colour scheme, and its pixels a unit."""
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})


@contextmanager
def open_browser(folder: Path) -> Iterator[Page]:
    """A headless Chromium with an empty profile in ``folder``."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    driver_path = shutil.which("chromedriver")
    if browser is None or driver_path is None:
        missing("no chromium and chromedriver (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = str(browser)
    for flag in (*_FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(driver_path)))
    try:
        yield Page(driver)
    finally:
        driver.quit()


class _Quiet(SimpleHTTPRequestHandler):
    """What ``python -m http.server`` runs, without its log; browsers may keep what it sends."""

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "max-age=600")
        super().end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def serve(
    folder: Path, types: dict[str, str] | None = None, port: int | None = None,
) -> Iterator[str]:
    """Serve a folder on localhost, at a port or any; ``types`` are other MIME types by file
    extension."""
    handler = type("Handler", (_Quiet,), {
        "extensions_map": {**_Quiet.extensions_map, **(types or {})}})
    with ThreadingHTTPServer(
            ("127.0.0.1", port or 0), partial(handler, directory=folder)) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
