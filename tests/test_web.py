"""The page in a headless Chromium: what it writes, what it compares, how it is used."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("selenium")

from selenium.webdriver.common.keys import Keys
from shown import README, picture_text
from web_browser import Page, need_runtime, open_browser, serve

from sterna.cli.main import main
from sterna.export.forms.forms import build
from sterna.export.web.page import write_page
from sterna.model.quantized import load_model

pytestmark = [pytest.mark.slow, pytest.mark.browser]

MODELS = ("tiny", "micro", "tiny-c12", "tiny-bpe")


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The page of a bundled model, written once."""
    need_runtime()
    base = tmp_path_factory.mktemp("pages")

    def folder(name: str) -> Path:
        if not (base / name).exists():
            write_page(load_model(name), base / name)
        return base / name

    return folder


@pytest.fixture
def copy(tmp_path: Path, folder_of: Callable[[str], Path]) -> Path:
    """A copy of the page of ``micro`` to spoil."""
    return Path(shutil.copytree(folder_of("micro"), tmp_path / "copy"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(browser: Page, folder_of: Callable[[str], Path]) -> Iterator[Page]:
    """The page of ``tiny``, just opened, on a large bright screen."""
    browser.screen(1100, 900)
    with serve(folder_of("tiny")) as address:
        browser.open(address)
        yield browser


def generated(capsys: pytest.CaptureFixture[str], name: str, prompt: str, **options: object) -> str:
    """What ``sterna generate`` writes."""
    capsys.readouterr()
    arguments = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    assert main(["generate", name, "--prompt", prompt, "--json", *arguments]) == 0
    return str(json.loads(capsys.readouterr().out)["text"])


@pytest.mark.parametrize("name", MODELS)
def test_the_page_writes_what_generate_writes_and_its_integers_are_equal(
    name, browser, folder_of, capsys,
):
    with serve(folder_of(name)) as address:
        browser.open(address)
        assert browser.text("error") == ""
        for options in ({"tokens": 200, "temperature": 0.7, "seed": 1},
                        {"tokens": 60, "temperature": 0, "seed": 1},
                        {"tokens": 60, "temperature": 1.35, "seed": 4294967295}):
            browser.set(prompt="The class", **options)
            browser.press("write")
            assert browser.written() == generated(capsys, name, "The class", **options)
            assert browser.text("given") == "The class"
            assert re.fullmatch(
                rf"Done: {options['tokens']} tokens, [\d,]+ tokens/s\.", browser.text("status"))
        model = load_model(name)
        config, prompt = model.config, len(model.tokenizer.encode("The for statement"))
        integers = 64 * config.vocab + config.layers * config.d + 64 - prompt + 1
        unit = "bytes" if model.tokenizer.kind == "bytes" else "tokens"
        assert browser.verdict() == f"{integers:,} integers equal, over 64 {unit} of text."
        assert browser.script("return document.querySelectorAll('#samples .differs').length") == 0


def test_the_picture_in_readme_is_of_this_page(page):
    page.press("write")
    page.written()
    page.verdict()
    assert page.shown() == picture_text(README.parent / "docs" / "web.png"), "tests/shown.py"


def test_bytes_that_are_not_utf8_and_an_empty_prompt_are_as_in_generate(page, capsys):
    for prompt in ("Grüße, 你好 🙂\n", ""):
        page.set(prompt=prompt, tokens=150, temperature=3, seed=7)
        page.press("write")
        expected = generated(capsys, "tiny", prompt, tokens=150, temperature=3, seed=7)
        assert page.written() == expected
        assert "\ufffd" in expected


def test_what_cannot_be_written_is_refused(browser, copy):
    with serve(copy) as address:
        browser.open(address)
        for field, wrong, right, message in (
            ("prompt", "Straße", "Strasse",
             "This model knows ASCII only; the prompt has “ß”. Take that out."),
            ("temperature", 0.001, 1, "Temperature must be 0 or from 0.01 to 100, got 0.001."),
        ):
            browser.set(tokens=5, **{field: wrong})
            browser.press("write")
            browser.wait(lambda: browser.text("error"))
            assert browser.text("error") == message
            browser.set(**{field: right})
            browser.press("write")
            assert len(browser.written()) == 5


def test_stop_stops_and_the_page_can_be_used_again(page):
    page.set(tokens=100_000)
    page.press("write")
    page.wait(lambda: page.text("written"))
    page.press("stop")
    page.wait(lambda: page.text("status").startswith("Stopped: "), 5)
    assert 0 < len(page.written().encode()) < 100_000
    page.set(tokens=40)
    page.press("write")
    assert len(page.written().encode()) == 40


def test_the_keyboard_alone_suffices(page, capsys):
    seen = []

    def enter(field: str, text: str) -> None:
        page.tab_to(field)
        seen.append(page.script(
            "const s = getComputedStyle(document.activeElement);"
            "return s.outlineStyle + ' ' + parseFloat(s.outlineWidth)"))
        page.key(Keys.CONTROL, "a")
        page.key(text)

    enter("prompt", "An import")
    enter("tokens", "50")
    enter("temperature", "0.5")
    enter("seed", "3")
    page.tab_to("write")
    page.key(Keys.ENTER)
    assert page.written() == generated(
        capsys, "tiny", "An import", tokens=50, temperature=0.5, seed=3)
    assert page.script("return document.activeElement.id") == "write"
    enter("tokens", "100000")
    page.tab_to("write")
    page.key(Keys.SPACE)
    page.tab_to("stop")
    page.key(Keys.ENTER)
    page.wait(lambda: page.text("status").startswith("Stopped"), 5)
    enter("prompt", "x")
    page.key(Keys.CONTROL, Keys.ENTER)
    page.wait(lambda: page.text("written"))
    page.key(Keys.ESCAPE)
    page.wait(lambda: page.text("status").startswith("Stopped"), 5)
    page.tab_to("check")
    page.key(Keys.ENTER)
    page.wait(lambda: "integers equal" in page.text("verdict"))
    assert set(seen) == {"solid 3"}


def test_every_control_has_a_name_and_news_is_announced(page):
    unnamed = page.script(
        "return [...document.querySelectorAll('input, textarea, button, progress')].filter("
        "e => !(e.labels && e.labels.length) && !e.getAttribute('aria-label') "
        "&& !e.textContent.trim()).map(e => e.id)")
    assert unnamed == []
    roles = page.script("return ['error', 'status', 'verdict'].map("
                        "id => document.getElementById(id).getAttribute('role'))")
    assert roles == ["alert", "status", "status"]


CONTRAST = """
const light = (text) => {
  const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (e) => {
  const colour = getComputedStyle(e).backgroundColor;
  return colour === "rgba(0, 0, 0, 0)" ? ground(e.parentElement) : colour;
};
return [...document.querySelectorAll("p, label, input, textarea, button, h1, h2, td, th, span")]
  .filter((e) => e.textContent.trim() || e.value).map((e) => {
    const pair = [light(getComputedStyle(e).color), light(ground(e))].sort((a, b) => b - a);
    return [(pair[0] + 0.05) / (pair[1] + 0.05), e.id || e.textContent];
  }).sort((a, b) => a[0] - b[0])[0];
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(360, 740), (1100, 900)], ids=["phone", "desktop"])
def test_it_fits_the_screen_and_can_be_read(page, width, height, dark, tmp_path):
    page.screen(width, height, dark=dark)
    page.set(prompt="a" * 300, tokens=300)
    page.press("write")
    page.written()
    page.verdict()
    assert page.script("return document.documentElement.scrollWidth") <= width
    wide = page.script(
        "return [...document.querySelectorAll('body *:not(#written)')].filter("
        "e => e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.id || e.tagName)")
    assert wide == []
    assert page.script("const t = document.getElementById('text');"
                       "return t.scrollWidth - t.clientWidth") <= 0
    assert page.script("return [...document.querySelectorAll('label')].filter("
                       "e => e.scrollWidth > e.clientWidth).length") == 0
    smallest, where = page.script(CONTRAST)
    assert smallest >= 4.5, where
    target = Path(os.environ.get("STERNA_SCREENSHOTS", tmp_path)) / (
        f"web-{width}-{'dark' if dark else 'light'}.png")
    assert page.driver.save_screenshot(str(target))
    assert target.stat().st_size > 10_000


def test_nothing_is_fetched_from_elsewhere(page):
    page.verdict()
    requested = [
        message["params"]["request"]["url"]
        for entry in page.driver.get_log("performance")
        if (message := json.loads(entry["message"])["message"])["method"]
        == "Network.requestWillBeSent"]
    assert any(address.endswith("page.js") for address in requested)
    elsewhere = [a for a in requested if urlsplit(a).scheme.startswith("http")
                 and urlsplit(a).hostname != "127.0.0.1"]
    assert elsewhere == []


# Faults -------------------------------------------------------------------------------


def verdict_of(browser: Page, folder: Path) -> str:
    with serve(folder) as address:
        browser.open(address)
        return browser.verdict()


@pytest.mark.parametrize(("place", "words"), [
    (("logits", 5), "after byte 6 of the text (“o”), the logit of byte 3 should be {} and is {}"),
    (("state",), "in the final state, channel 3 of layer 0 should be {} and is {}"),
    (("tokens",), "byte 65 of the text should be .+ and .+ was drawn"),
], ids=["logit", "state", "drawn byte"])
def test_a_changed_recorded_integer_is_reported(place, words, browser, copy):
    record = values = json.loads((copy / "check.json").read_text())
    for key in place:
        values = values[key]
    at = -1 if place == ("tokens",) else 3
    right = values[at]
    values[at] ^= 1
    (copy / "check.json").write_text(json.dumps(record))
    words = words if at < 0 else re.escape(words.format(right ^ 1, right))
    assert re.fullmatch(
        rf"Not the same: 1 of [\d,]+ integers differ\. First: {words}\. \(check\.json is not the "
        r"file that sterna web wrote\.\)", verdict_of(browser, copy))


def test_a_changed_model_file_is_reported(browser, copy):
    model = load_model("micro")
    name, old = next(iter(model.projections.items()))
    bias = old.bias.copy()
    bias[0] += 40
    other = replace(
        model, projections={**model.projections, name: replace(old, bias=bias)})
    (copy / "model.onnx").write_bytes(build(other, "web", one_token=True).SerializeToString())
    assert re.match(r"Not the same: [\d,]+ of [\d,]+ integers differ\. First: after byte \d+ of "
                    r"the text \(“.”\), the logit of .+ should be -?\d+ and is -?\d+\. "
                    r"\(model\.onnx is not the file that sterna web wrote\.\)",
                    verdict_of(browser, copy))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


@pytest.mark.parametrize(("spoil", "message"), [
    (lambda folder: (folder / "model.onnx").unlink(),
     "model.onnx could not be fetched: the server answered 404."),
    (lambda folder: _cut(folder / "model.onnx"), "onnxruntime cannot load model.onnx"),
    (lambda folder: (folder / "ort.wasm").write_text("<html>"), "ort.wasm is not WebAssembly"),
    (lambda folder: (folder / "ort.js").unlink(), "ort.js could not be loaded"),
    (lambda folder: (folder / "sampler.js").unlink(), "worker.js could not be loaded, or a file"),
    (lambda folder: (folder / "page.js").unlink(), "page.js could not be loaded"),
    (lambda folder: (folder / "params.json").write_text("{"), "params.json is damaged"),
    (lambda folder: (folder / "params.json").write_text("{}"), "params.json is not of a page"),
], ids=["no model", "cut model", "no wasm", "no runtime", "no sampler", "no page", "bad facts",
        "other facts"])
def test_what_is_missing_or_damaged_is_named(spoil, message, browser, copy):
    spoil(copy)
    with serve(copy) as address:
        browser.open(address)
        assert browser.text("error").startswith(message)
        assert browser.script(
            "return document.getElementById('write').getAttribute('aria-disabled')") == "true"


def test_a_missing_record_leaves_the_rest_usable(browser, copy):
    (copy / "check.json").unlink()
    with serve(copy) as address:
        browser.open(address)
        browser.press("check")
        browser.wait(lambda: browser.text("error"))
        assert browser.text("error").startswith("check.json could not be fetched")
        browser.set(tokens=10)
        browser.press("write")
        assert len(browser.written()) == 10


def test_types_that_a_server_gives(browser, copy):
    with serve(copy, {".wasm": "text/plain", ".onnx": "text/html"}) as address:
        browser.open(address)
        assert browser.text("status") == "Ready."
    with serve(copy, {".js": "text/plain"}) as address:
        browser.open(address)
        assert "does not send .js files with the type text/javascript" in browser.text("error")


def test_opened_as_a_file_it_says_what_to_do(browser, copy):
    browser.open((copy / "index.html").as_uri())
    assert "python -m http.server" in browser.text("error")
