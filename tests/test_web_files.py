"""Writing the page: contents, repeatability, refusals; and its WebAssembly in Node."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_export_c import FAULTS, plant

from sterna.cli.main import main
from sterna.export.forms.selftest import sample_steps
from sterna.export.web import wasm
from sterna.export.web.page import write_page
from sterna.export.web.wasm import build_wasm
from sterna.model.config import ModelConfig
from sterna.model.cpp_library import CompileError
from sterna.model.folder import OutputFolderError
from sterna.model.profile import S16
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.synthetic import random_model
from sterna.model.tokens.tokenizer import TokenNumbers

SOURCES = Path(wasm.__file__).parent / "sources"
SMALL = ModelConfig(d=12, layers=2, dff=21, vocab=128)
MODELS = ("tiny", "micro", "tiny-c12", "tiny-bpe", "vowels")
RESULTS = """
const compiled = await WebAssembly.compile(bytes);
const { exports: own } = await WebAssembly.instantiate(compiled);
const [section] = WebAssembly.Module.customSections(compiled, "sterna");
const facts = JSON.parse(new TextDecoder().decode(section));
const Values = facts.value_bits === 16 ? Int16Array : Int32Array;
const right = own.test();
own.start(0, 1);
const results = steps.flatMap((step) => {
  if (facts.bits) new Int32Array(own.memory.buffer, own.frame_at()).set(step);
  return [...new Values(own.memory.buffer, own.step(step), facts.results)];
});
"""
"""JavaScript that runs ``steps``, tokens or frames, with the WebAssembly ``bytes``: ``results`` are
all of them, ``right`` tells what the self-test found."""


def in_node(content: bytes, steps: object, folder: Path) -> dict[str, Any]:
    """The facts of a model in WebAssembly, its self-test, and its results of every step."""
    folder.mkdir(exist_ok=True)
    (folder / "model.wasm").write_bytes(content)
    (folder / "run.mjs").write_text(
        'import { readFileSync } from "node:fs";\n'
        'const bytes = readFileSync("model.wasm"), steps = JSON.parse(readFileSync(0));\n'
        + RESULTS + "console.log(JSON.stringify({ facts, right, results }));\n")
    done = subprocess.run(["node", "run.mjs"], cwd=folder, input=json.dumps(steps),
                          capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def sequence(model: QuantizedModel, length: int) -> np.ndarray:
    """A sequence of tokens or frames, ``[1, length, ...]``."""
    return np.asarray(sample_steps(model.entry, 1, length))


@pytest.mark.slow
@pytest.mark.needs("node")
@pytest.mark.parametrize("name", MODELS)
def test_2000_steps_are_the_reference_in_node(name, tmp_path):
    model = load_model(name)
    steps = sequence(model, 2000)
    content, facts = build_wasm(model)
    found = in_node(content, steps[0].tolist(), tmp_path)
    assert found["facts"] == facts
    assert found["right"] == 1
    np.testing.assert_array_equal(
        np.reshape(found["results"], (2000, -1)), IntegerModel(model).run(steps)[0][0])


@pytest.mark.needs("node")
def test_what_the_functions_refuse_and_tokens_without_a_tokenizer_are_numbers(tmp_path):
    model = replace(random_model(SMALL, S16), tokenizer=TokenNumbers(128))
    (tmp_path / "model.wasm").write_bytes(build_wasm(model)[0])
    (tmp_path / "run.mjs").write_text("""
import { readFileSync } from "node:fs";
const { instance: { exports: own } } = await WebAssembly.instantiate(readFileSync("model.wasm"));
const bytes = new Uint8Array(own.memory.buffer, own.text_at());
const encode = (text) => {
  bytes.set(new TextEncoder().encode(text));
  const count = own.encode(text.length);
  return count < 0 ? null : [...new Int32Array(own.memory.buffer, own.tokens_at(), count)];
};
own.start(0, 1);
console.log(JSON.stringify({
  early: own.sample(), refused: [-1, 128].map((token) => [own.step(token), own.decode(token)]),
  long: [-1, 65537].map((length) => own.encode(length)),
  encoded: ["3 17", "128", "x", " "].map(encode),
  text: String.fromCharCode(...bytes.slice(0, own.decode(17))) }));
""")
    done = subprocess.run(["node", "run.mjs"], cwd=tmp_path, capture_output=True, text=True,
                          check=True)
    assert json.loads(done.stdout) == {
        "early": -1, "refused": [[0, -1]] * 2, "long": [-1, -1],
        "encoded": [[3, 17], None, None, []], "text": " 17"}


def with_fault(monkeypatch: pytest.MonkeyPatch, fault: str) -> bytes:
    """``micro`` in WebAssembly with a fault."""
    export_c = wasm.export_c

    def spoiled(model: QuantizedModel, folder: Path, *, blob: bool) -> Mapping[str, Any]:
        facts = export_c(model, folder, blob=blob)
        if fault == "bit":
            content = bytearray((folder / "model.bin").read_bytes())
            content[1000] ^= 4
            (folder / "model.bin").write_bytes(content)
        else:
            plant(folder, fault)
        return facts

    with monkeypatch.context() as patch:
        patch.setattr(wasm, "export_c", spoiled)
        return build_wasm(load_model("micro"))[0]


@pytest.mark.needs("node")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_fails_the_self_test(fault, tmp_path, monkeypatch):
    assert in_node(with_fault(monkeypatch, fault), [], tmp_path)["right"] == 0


def test_a_page_has_all_it_needs_and_the_same_bytes_each_time(tmp_path):
    params = write_page(random_model(SMALL, S16), tmp_path / "a")
    for _ in range(2):      # our own folder is replaced
        write_page(random_model(SMALL, S16), tmp_path / "b")
    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    sources = {path.name for path in SOURCES.iterdir()
               if path.suffix in (".js", ".html", ".css", ".svg", ".webmanifest")}
    assert set(files) == sources | {"model.wasm", "params.json"}
    assert params["files"] == {
        name: hashlib.sha256(data).hexdigest() for name, data in files.items()
        if name != "params.json"}
    # What the service worker keeps is all that the page loads, as it is here.
    kept = re.search(rb"const FILES = (\{.*?\});", files["service.js"], re.DOTALL)
    assert kept is not None
    assert json.loads(kept[1]) == {
        name: digest for name, digest in params["files"].items() if name != "service.js"}
    assert files["model.wasm"][-32:] == hashlib.sha256(files["model.wasm"][:-32]).digest()
    ours = b"".join(files[name] for name in sources)
    assert set(re.findall(rb"(?:https?:)?//[\w.:]+", ours)) <= {b"http://www.w3.org"}


def test_the_folder_of_tiny_is_small(tmp_path):
    write_page(load_model("tiny"), tmp_path / "page")
    assert sum(path.stat().st_size for path in (tmp_path / "page").iterdir()) < 350_000


def test_a_foreign_folder_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputFolderError, match=r"did not write \(notes.txt\)"):
        write_page(random_model(SMALL, S16), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_missing_or_failing_compiler_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(wasm, "_FLAGS", ("-no-such-option",))
    with pytest.raises(CompileError, match=r"ziglang failed on the C of the model: .*no-such"):
        build_wasm(random_model(SMALL, S16))

    def missing(name: str) -> str:
        raise wasm.PackageNotFoundError(name)

    monkeypatch.setattr(wasm, "version", missing)
    assert main(["web", "micro", "-o", str(tmp_path / "page"), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("sterna: a page needs the compiler in the package ziglang: ")
    assert re.search(r"python[\d.]* -m pip install .*\[web\]'?\n$", error), sys.executable
    assert error.count("\n") == 1
    assert not (tmp_path / "page").exists()
