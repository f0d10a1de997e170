"""The page in a headless Chromium: what it writes and computes, how it is used."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

pytest.importorskip("selenium")

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from shown import README, picture_text
from test_web_files import MODELS, RESULTS, sequence, with_fault
from web_browser import Page, open_browser, serve

from sterna.cli.main import main
from sterna.export.web import wasm
from sterna.export.web.page import write_page
from sterna.model.config import ModelConfig
from sterna.model.profile import S16
from sterna.model.quantized import load_model
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.recordings import read_frames
from sterna.model.quantized.synthetic import random_model
from sterna.model.tokens.bpe import BytePairTokenizer
from sterna.model.tokens.tokenizer import TokenNumbers

pytestmark = [pytest.mark.slow, pytest.mark.browser]

TEXT_MODELS = [name for name in MODELS if name != "vowels"]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The page of a bundled model, written once."""
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


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_the_page_writes_what_generate_writes(name, browser, folder_of, capsys):
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
        digest = json.loads((folder_of(name) / "params.json").read_text())["self_test"]
        assert f"as the reference (SHA-256 {digest[:12]})." in browser.text("verdict")


@pytest.mark.parametrize("name", MODELS)
def test_2000_steps_are_the_reference_in_chromium(name, browser, folder_of, tmp_path):
    """Without the page, whose policy lets no script of a test run WebAssembly."""
    shutil.copy(folder_of(name) / "model.wasm", tmp_path)
    (tmp_path / "index.html").write_text("<!DOCTYPE html><title>bare</title>")
    model = load_model(name)
    steps = sequence(model, 2000)
    with serve(tmp_path) as address:
        browser.driver.get(address)
        found = browser.driver.execute_async_script(
            "const [steps, done] = arguments; (async () => {"
            "const bytes = await (await fetch('model.wasm')).arrayBuffer();"
            f"{RESULTS} return [right, results]; }})().then(done, (e) => done(String(e)));",
            steps[0].tolist())
    assert found[0] == 1, found
    np.testing.assert_array_equal(
        np.reshape(found[1], (2000, -1)), IntegerModel(model).run(steps)[0][0])


def test_the_picture_in_readme_is_of_this_page(page):
    page.press("write")
    page.written()
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
             "The model lacks “ß”. Take that out of the prompt."),
            ("temperature", 0.001, 1, "Temperature must be 0 or from 0.01 to 100, got 0.001."),
        ):
            browser.set(tokens=5, **{field: wrong})
            browser.press("write")
            browser.wait(lambda: browser.text("error"))
            assert browser.text("error") == message
            browser.set(**{field: right})
            browser.press("write")
            assert len(browser.written()) == 5


def test_a_text_ends_at_its_end_token_and_a_model_may_have_no_tokenizer(
    browser, tmp_path, capsys,
):
    pairs = BytePairTokenizer([(116, 104), (256, 101)], end_of_text=True)
    for tokenizer, prompt in ((pairs, "the"), (TokenNumbers(300), "3 17")):
        model = replace(random_model(ModelConfig(12, 2, 21, tokenizer.vocab), S16),
                        tokenizer=tokenizer)
        path = model.save(tmp_path / "model.safetensors")
        write_page(model, tmp_path / "page")
        with serve(tmp_path / "page") as address:
            browser.open(address)
            browser.set(prompt=prompt, tokens=3000, temperature=100)
            browser.press("write")
            expected = generated(capsys, str(path), prompt, tokens=3000, temperature=100)
            assert browser.written() == expected
            ended = re.search(r"Done: ([\d,]+) tokens", browser.text("status"))
            assert ended is not None
            assert (int(ended[1].replace(",", "")) < 3000) == (tokenizer is pairs)
            if tokenizer is not pairs:
                for wrong in ("", "300", "The"):
                    browser.set(prompt=wrong)
                    browser.press("write")
                    browser.wait(lambda: browser.text("error"))
                    assert browser.text("error") == (
                        "This model has no tokenizer: the prompt must be numbers of tokens below "
                        "300, such as “3 17”.")
                    browser.set(prompt=prompt, tokens=1)
                    browser.press("write")
                    browser.written()


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
    page.tab_to("file")
    assert set(seen) == {"solid 3"}


def test_every_control_has_a_name_and_news_is_announced(page):
    unnamed = page.script(
        "return [...document.querySelectorAll('input, textarea, button, select, canvas')].filter("
        "e => !(e.labels && e.labels.length) && !e.getAttribute('aria-label') "
        "&& !(e.tagName === 'BUTTON' && e.textContent.trim())).map(e => e.id)")
    assert unnamed == []
    roles = page.script("return ['error', 'status'].map("
                        "id => document.getElementById(id).getAttribute('role'))")
    assert roles == ["alert", "status"]


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
return [...document.querySelectorAll("p, label, input, select, textarea, button, h1, h2, span")]
  .filter((e) => e.offsetParent && (e.textContent.trim() || e.value)).map((e) => {
    const pair = [light(getComputedStyle(e).color), light(ground(e))].sort((a, b) => b - a);
    return [(pair[0] + 0.05) / (pair[1] + 0.05), e.id || e.textContent];
  }).sort((a, b) => a[0] - b[0])[0];
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(360, 740), (1100, 900)], ids=["phone", "desktop"])
def test_it_fits_the_screen_and_can_be_read(
    browser, folder_of, frames, width, height, dark, tmp_path,
):
    browser.screen(width, height, dark=dark)
    for name in ("tiny", "vowels"):
        with serve(folder_of(name)) as address:
            browser.open(address)
            if name == "tiny":
                browser.set(prompt="a" * 300, tokens=300)
                browser.press("write")
                browser.written()
            else:
                browser.give("table", frames)
                browser.wait(lambda: browser.text("status").startswith("Done"))
            check_screen(browser, width)
            target = Path(os.environ.get("STERNA_SCREENSHOTS", tmp_path)) / (
                f"web-{name}-{width}-{'dark' if dark else 'light'}.png")
            assert browser.driver.save_screenshot(str(target))
            assert target.stat().st_size > 10_000


def check_screen(browser: Page, width: int) -> None:
    """Nothing is wider than the screen, and all text has contrast."""
    assert browser.script("return document.documentElement.scrollWidth") <= width
    wide = browser.script(
        "return [...document.querySelectorAll('body *:not(#written)')].filter("
        "e => e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.id || e.tagName)")
    assert wide == []
    assert browser.script("const t = document.getElementById('text');"
                          "return t.scrollWidth - t.clientWidth") <= 0
    assert browser.script("return [...document.querySelectorAll('label')].filter("
                          "e => e.scrollWidth > e.clientWidth).map(e => e.textContent)") == []
    smallest, where = browser.script(CONTRAST)
    assert smallest >= 4.5, where


def test_nothing_is_fetched_from_elsewhere(page):
    requested = [
        message["params"]["request"]["url"]
        for entry in page.driver.get_log("performance")
        if (message := json.loads(entry["message"])["message"])["method"]
        == "Network.requestWillBeSent"]
    assert {urlsplit(address).path for address in requested} >= {"/page.js", "/worker.js"}
    elsewhere = [a for a in requested if urlsplit(a).scheme.startswith("http")
                 and urlsplit(a).hostname != "127.0.0.1"]
    assert elsewhere == []


# A network ----------------------------------------------------------------------------


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    """A table of frames for ``vowels``, some beyond the range of its input."""
    rows = np.random.default_rng(0).normal(size=(40, 12)) * 3
    path = tmp_path / "frames.csv"
    path.write_text("".join(f"{','.join(map(str, row))}\n"
                            for row in [["channel"] * 12, *rows.tolist()]))
    return path


def expected_results(capsys: pytest.CaptureFixture[str], path: Path) -> list[list[float]]:
    """What ``sterna run`` prints for a table."""
    capsys.readouterr()
    assert main(["run", "vowels", str(path), "--quiet"]) == 0
    return numbers(capsys.readouterr().out)


def numbers(table: str) -> list[list[float]]:
    header, *rows = csv.reader(table.splitlines())
    assert header == [f"y{index}" for index in range(len(header))]
    return [[float(value) for value in row] for row in rows]


def results(browser: Page) -> list[list[float]]:
    browser.wait(lambda: browser.text("status").startswith("Done") or browser.text("error"))
    assert browser.text("error") == ""
    return numbers(browser.script("return document.getElementById('results').value"))


@pytest.fixture
def series(browser: Page, folder_of: Callable[[str], Path]) -> Iterator[Page]:
    """The page of ``vowels``, just opened."""
    browser.screen(1100, 900)
    with serve(folder_of("vowels")) as address:
        browser.open(address)
        yield browser


def test_the_results_of_a_table_are_those_of_run(series, frames, capsys):
    series.give("table", frames)
    expected = expected_results(capsys, frames)
    assert results(series) == expected
    largest = int(np.argmax(expected[-1]))
    assert series.text("status").startswith(
        f"Done: 40 frames. At the end, y{largest} is the largest, ")
    assert re.search(r"\d+ numbers are beyond the range of the input, and were clipped\.",
                     series.text("status"))


def test_a_drawn_channel_is_run(series, tmp_path, capsys):
    series.screen(1100, 900, scale=2)
    series.script("document.getElementById('channel').value = '3'")
    canvas = series.driver.find_element(By.ID, "drawing")
    width = canvas.size["width"]
    (ActionChains(series.driver).move_to_element_with_offset(canvas, -width // 2 + 8, -50)
     .click_and_hold().move_by_offset(width // 2, 80).move_by_offset(width // 2 - 16, -30)
     .release().perform())
    found = results(series)
    table = tmp_path / "drawn.csv"
    table.write_text(series.script("return document.getElementById('frames').value"))
    drawn = np.loadtxt(table, delimiter=",")
    assert drawn.shape == (32, 12)
    assert (np.delete(drawn, 3, axis=1) == 0).all()
    assert drawn[0, 3] > 1
    assert drawn[16, 3] < 0
    assert (drawn[:, 3] != 0).all()
    assert found == expected_results(capsys, table)
    colours = series.script(
        "return ['drawing', 'curves'].map((name) => { const c = document.getElementById(name);"
        "const data = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height)"
        ".data.buffer); return [c.width, new Set(data).size]; })")
    assert all(size == 2 * width - 4 for size, _ in colours)       # two pixels a unit; no border
    assert all(count > 3 for _, count in colours)


def test_a_long_table_is_run_after_a_wrong_one(series, tmp_path, capsys):
    series.set(frames="x")
    series.press("run")
    series.wait(lambda: series.text("error"))
    table = tmp_path / "long.csv"
    np.savetxt(table, np.random.default_rng(1).normal(size=(20_000, 12)), "%.3f", ",")
    series.give("table", table)
    found = results(series)
    assert len(found) == 20_000
    assert found[-1] == expected_results(capsys, table)[-1]


def test_a_table_is_read_as_run_reads_it(series, tmp_path):
    table = tmp_path / "table.csv"
    for line in ("1,2", '"1","-2.5"', " +1e2,.5", "1.,-0", "a,b\n1,2", '"a","b"\n3,4',
                 "inf,nan\n1,2"):
        table.write_text(line)
        found = series.driver.execute_async_script(PARSE, line)
        assert found == read_frames(table, 2).tolist(), line
    for line in ("0x10,1", "1,", "1,2,3", "1,a", "1,2\n\n3,4", "inf,1", "", "a,b"):
        table.write_text(line)
        with pytest.raises(ValueError, match=r"line \d has|no frame"):
            read_frames(table, 2)
        assert isinstance(series.driver.execute_async_script(PARSE, line), str), line


PARSE = """
const [table, done] = arguments;
import(new URL("series.js", location)).then(({ parseTable }) => {
  try { done(parseTable(table, 2)); } catch (error) { done(error.message); }
});"""


@pytest.mark.parametrize(("table", "message"), [
    ("1,2\n", "Line 1: expected 12 numbers, separated by commas."),
    (",".join("1" * 12) + "\n" + ",".join("1" * 11) + ",x\n", "Line 2: expected 12 numbers"),
    (",".join(["channel"] * 12), "There is no frame in the table."),
], ids=["short", "no number", "empty"])
def test_a_table_that_is_none_is_refused(series, table, message):
    series.set(frames=table)
    series.press("run")
    assert series.text("error").startswith(message)
    series.set(frames=",".join("1" * 12))
    series.press("run")
    assert len(results(series)) == 1


# Another model, and no network --------------------------------------------------------


def drop(browser: Page, address: str, name: str) -> None:
    """Drop a file that the server has."""
    browser.driver.execute_async_script("""
const [address, name, done] = arguments;
fetch(address).then((response) => response.arrayBuffer()).then((bytes) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([bytes], name));
  document.body.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true }));
  done();
});""", address, name)


def test_another_model_is_taken_and_a_damaged_one_refused(
    browser, copy, folder_of, capsys, monkeypatch,
):
    other = (folder_of("tiny") / "model.wasm").read_bytes()
    (copy / "other.wasm").write_bytes(other)
    with serve(copy) as address:
        browser.open(address)
        drop(browser, f"{address}other.wasm", "tiny.wasm")
        browser.wait(lambda: "256 tokens" in browser.text("facts"))
        browser.loaded()
        browser.set(prompt="Grüße", tokens=40)
        browser.press("write")
        expected = generated(capsys, "tiny", "Grüße", tokens=40)
        assert browser.written() == expected
        damaged = bytearray(other)
        damaged[100_000] ^= 1
        with monkeypatch.context() as patch:
            patch.setattr(wasm, "_ABI", 2)
            later, _ = wasm.build_wasm(load_model("micro"))
        said = "is damaged, or not a file that sterna web wrote."
        for content, reason in ((bytes(damaged), said), (other[:-1], said), (b"", said),
                                (later, "was written by another version of Sterna, 0.1.0.")):
            (copy / "other.wasm").write_bytes(content)
            browser.give("file", copy / "other.wasm")
            browser.wait(lambda: browser.text("error"))
            assert browser.text("error") == f"other.wasm {reason}"
            browser.press("write")      # the last one is still there
            assert browser.written() == expected
        browser.set(tokens=100_000)
        browser.press("write")
        browser.give("file", folder_of("vowels") / "model.wasm")
        assert browser.text("error") == "The model is at work: wait, or press Stop first."
        browser.press("stop")
        browser.wait(lambda: browser.text("status").startswith("Stopped"))
        assert browser.text("error") == ""
        browser.give("file", folder_of("vowels") / "model.wasm")
        browser.wait(lambda: "frames of 12 channels" in browser.text("facts"))
        assert browser.script("return document.getElementById('text-view').hidden")


def kept(browser: Page) -> None:
    """Wait until the browser has the page for use without a network."""
    browser.wait(lambda: browser.text("kept") == "Kept in this browser: opens without a network.")


def cached(browser: Page, code: str) -> None:
    """Change the entry of the model in the browser's cache."""
    browser.driver.execute_async_script(
        "const done = arguments[0]; (async () => { const [name] = await caches.keys();"
        f"const cache = await caches.open(name); {code} }})().then(done)")


def test_after_one_visit_it_opens_without_a_network(browser, copy, folder_of, capsys):
    expected = {name: generated(capsys, name, "The for statement", tokens=30)
                for name in ("micro", "tiny")}

    def check(name: str) -> None:
        browser.set(tokens=30)
        browser.press("write")
        assert browser.written() == expected[name]

    with serve(copy) as address:
        browser.open(address)
        kept(browser)
        check("micro")
    browser.open(address)       # the server is gone
    check("micro")
    with serve(copy, port=urlsplit(address).port):
        # A new model takes the place of the old one at once, and without a network afterwards.
        shutil.copytree(folder_of("tiny"), copy, dirs_exist_ok=True, copy_function=shutil.copy)
        browser.open(address)
        check("tiny")
        digest = json.loads((copy / "params.json").read_text())["files"]["model.wasm"]
        browser.wait(lambda: browser.driver.execute_async_script(
            "const [part, done] = arguments; caches.keys().then("
            "names => done(names.length === 1 && names[0].includes(part)))", digest[:8]))
        (copy / "model.wasm").unlink()      # what is kept hides no fault of the server
        browser.open(address)
        assert browser.text("error") == "model.wasm could not be fetched: 404 File not found."
        shutil.copy(folder_of("tiny") / "model.wasm", copy)
        _change(copy / "service.js", lambda old: old.replace(b'"page.js": "', b'"page.js": "0'))
        browser.open(address)       # a version that is not whole is not kept
        browser.wait(lambda: browser.text("kept") ==
                     "An older copy of this page is kept in this browser.")
        shutil.copy(folder_of("tiny") / "service.js", copy)
    browser.open(address)
    check("tiny")
    cached(browser, "await cache.put('model.wasm', new Response('damaged'));")
    browser.open(address)
    assert browser.text("error") == (
        "model.wasm could not be fetched: 503 missing or damaged in this browser: open the page "
        "once with a network.")
    with serve(copy, port=urlsplit(address).port):
        browser.open(address)       # which mends it
        check("tiny")
        browser.wait(lambda: browser.driver.execute_async_script(
            "const done = arguments[0]; caches.match('model.wasm').then((found) => found.blob())"
            ".then((blob) => done(blob.size > 1000))"))
    browser.open(address)
    check("tiny")
    with socket.create_server(("127.0.0.1", urlsplit(address).port)):   # which does not answer
        browser.open(address)
        check("tiny")


def test_it_can_be_installed(page):
    manifest = page.driver.execute_cdp_cmd("Page.getAppManifest", {})
    assert manifest["errors"] == []
    assert json.loads(manifest["data"])["start_url"] == "."
    found = page.driver.execute_cdp_cmd("Page.getInstallabilityErrors", {})
    assert [each["errorId"] for each in found["installabilityErrors"]
            if each["errorId"] != "in-incognito"] == []


# Faults -------------------------------------------------------------------------------


def _change(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(("spoil", "message"), [
    (lambda folder: (folder / "model.wasm").unlink(),
     "model.wasm could not be fetched: 404 File not found."),
    (lambda folder: _change(folder / "model.wasm", lambda old: old[:1000]),
     "model.wasm is damaged, or not a file that sterna web wrote."),
    (lambda folder: _change(folder / "model.wasm", lambda old: b"<html>"), "model.wasm is damaged"),
    (lambda folder: (folder / "worker.js").unlink(), "worker.js could not be loaded."),
], ids=["no model", "cut model", "no wasm", "no worker"])
def test_what_is_missing_or_damaged_is_named(spoil, message, browser, copy):
    spoil(copy)
    with serve(copy) as address:
        browser.open(address)
        assert browser.text("error").startswith(message)
        assert browser.script(
            "return document.getElementById('write').getAttribute('aria-disabled')") == "true"
        if "model" in message:      # its place is not taken by a damaged one
            browser.wait(lambda: browser.text("kept").startswith("Not kept in this browser: not "))


def test_a_fault_in_the_arithmetic_is_refused(browser, copy, monkeypatch):
    (copy / "model.wasm").write_bytes(with_fault(monkeypatch, "rounding"))
    with serve(copy) as address:
        browser.open(address)
        assert browser.text("error") == (
            "model.wasm fails its self-test: it is damaged, or this browser computes wrongly.")


def test_types_that_a_server_gives(browser, copy):
    with serve(copy, {".wasm": "text/plain"}) as address:
        browser.open(address)
        assert browser.text("status") == "Ready."
    with serve(copy, {".js": "text/plain"}) as address:
        browser.driver.get(address)
        assert ".js as text/javascript" in browser.text("status")


def test_opened_as_a_file_it_says_what_to_do(browser, copy):
    browser.driver.get((copy / "index.html").as_uri())
    assert "python -m\nhttp.server" in browser.text("status")
