"""Writing the page: contents, repeatability, refusals; where its runtime comes from."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_script import SOURCES, run_in_node

from sterna.cli.main import main
from sterna.export.forms.forms import build
from sterna.export.graph.metadata import GraphKind
from sterna.export.runtime.runtime import OnnxStep
from sterna.export.web import page as webruntime
from sterna.export.web.page import (
    CHECK_PROMPT,
    WebRuntimeError,
    record_reference,
    runtime_files,
    write_page,
)
from sterna.model.config import ModelConfig
from sterna.model.folder import OutputFolderError
from sterna.model.profile import PROFILES, S16
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.bundled import BUNDLED
from sterna.model.quantized.sampling import EXP_TABLE, Sampler
from sterna.model.quantized.synthetic import random_model

STAND_IN = {name: f"stands for {name}".encode() for name in webruntime.WEB_RUNTIME}


@pytest.fixture
def small() -> QuantizedModel:
    return random_model(ModelConfig(d=12, layers=2, dff=21, vocab=128), S16)


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Pins for stand-ins of the runtime, an empty cache, and a folder with them."""
    monkeypatch.setattr(webruntime, "WEB_RUNTIME", {
        name: hashlib.sha256(data).hexdigest() for name, data in STAND_IN.items()})
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "package" / "dist"
    folder.mkdir(parents=True)
    for name, data in STAND_IN.items():
        (folder / name).write_bytes(data)
    return folder.parent


def test_a_form_that_is_not_exact_is_refused_before_anything_is_fetched(
    small: QuantizedModel, tmp_path: Path,
) -> None:
    with pytest.raises(ValueError, match="the page needs an exact form, got fast"):
        write_page(small, tmp_path / "page", form="fast", runtime=tmp_path / "none")


def fake_npm(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Put a program called npm on PATH, alone."""
    folder.mkdir(exist_ok=True)
    npm = folder / "npm"
    npm.write_text(f"#!{sys.executable}\nimport sys, tarfile\n{code}\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_a_page_has_all_it_needs_and_the_same_bytes_each_time(
    small: QuantizedModel, pinned: Path, tmp_path: Path,
) -> None:
    first = write_page(small, tmp_path / "a", runtime=pinned)
    write_page(small, tmp_path / "b", runtime=pinned / "dist")
    write_page(small, tmp_path / "b", runtime=pinned)       # our own folder is replaced
    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    assert files["ort.wasm"] == STAND_IN["ort-wasm-simd-threaded.wasm"]
    sources = {path.name for path in SOURCES.iterdir() if path.suffix in (
        ".js", ".html", ".css", ".txt")}
    assert set(files) == sources | {
        "check.json", "model.onnx", "ort.js", "ort.wasm", "params.json"}
    assert first.manifest["files"] == {
        name: hashlib.sha256(data).hexdigest() for name, data in files.items()
        if name != "params.json"}
    assert first.manifest["exp_table"] == EXP_TABLE.tolist()
    ours = b"".join(files[name] for name in sources)
    assert set(re.findall(rb"(?:https?:)?//[\w.:]+", ours)) <= {b"http://localhost:8000."}


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_the_record_is_what_graph_and_sampler_give(name: str) -> None:
    model = random_model(ModelConfig(d=12, layers=2, dff=21, vocab=128), PROFILES[name])
    record = record_reference(model, 40)
    graph = OnnxStep(build(model, "web", GraphKind.STEP))
    assert bytes(record["tokens"][:record["prompt"]]) == CHECK_PROMPT.encode()
    logits, state = graph.run(np.array([record["tokens"][:-1]]))
    assert logits[0].tolist() == record["logits"]
    assert state.reshape(-1).tolist() == record["state"]
    sampler = Sampler(temperature=record["temperature"], seed=record["seed"],
                      logit_frac=model.profile.logit.frac)
    assert [sampler(row) for row in logits[0, record["prompt"] - 1:]] == (
        record["tokens"][record["prompt"]:])


def test_the_model_of_the_page_is_a_whole_onnx_file(
    small: QuantizedModel, pinned: Path, tmp_path: Path,
) -> None:
    write_page(small, tmp_path / "page", runtime=pinned)
    onnx.checker.check_model(str(tmp_path / "page" / "model.onnx"), full_check=True)


def test_what_cannot_become_a_page_is_refused(
    small: QuantizedModel, pinned: Path, tmp_path: Path,
) -> None:
    with pytest.raises(ValueError, match=r"at least 128 tokens that its tokenizer spells, got 65"):
        write_page(random_model(ModelConfig(d=8, layers=1, dff=12, vocab=65), S16),
                   tmp_path / "page", runtime=pinned)
    with pytest.raises(ValueError, match=r"must have at least 17 tokens .* got 16"):
        write_page(small, tmp_path / "page", runtime=pinned, check_tokens=16)
    assert not (tmp_path / "page").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(OutputFolderError, match=r"did not write \(notes.txt\)"):
        write_page(small, tmp_path / "mine", runtime=pinned)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


# The runtime --------------------------------------------------------------------------


def test_the_runtime_comes_from_npm_once(
    pinned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_npm(tmp_path / "bin", monkeypatch, (
        "assert sys.argv[1] == 'pack' and '--ignore-scripts' in sys.argv\n"
        "target = sys.argv[sys.argv.index('--pack-destination') + 1]\n"
        f"with tarfile.open(target + '/package.tgz', 'w:gz') as archive:\n"
        f"    archive.add({str(pinned)!r}, 'package')"))
    assert runtime_files() == STAND_IN
    monkeypatch.setenv("PATH", "")
    assert runtime_files() == STAND_IN
    damaged = webruntime.runtime_cache() / "ort-wasm-simd-threaded.wasm"
    damaged.write_bytes(b"cut")
    with pytest.raises(WebRuntimeError, match="npm is not installed"):
        runtime_files()


def test_without_npm_the_message_says_what_to_do(
    pinned: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("PATH", "")
    assert main(["web", "micro", "-o", str(tmp_path / "page"), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "sterna: the page needs the npm package onnxruntime-web@1.30.0, and npm is not installed")
    assert "--ort" in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "page").exists()


@pytest.mark.parametrize(("code", "message"), [
    ("print('npm error network down', file=sys.stderr); sys.exit(1)",
     r"npm pack .* failed \(npm error network down\); without a network"),
    ("sys.exit(3)", r"failed \(exit code 3\)"),
    ("", "wrote 0 archives"),
    ("open(sys.argv[sys.argv.index('--pack-destination') + 1] + '/a.tgz', 'w').write('no')",
     "archive of .* is damaged"),
    ("tarfile.open(sys.argv[sys.argv.index('--pack-destination') + 1] + '/a.tgz', 'w:gz').close()",
     "has no dist/ort.wasm.bundle.min.mjs"),
])
def test_a_failing_npm_is_reported(
    code: str, message: str, pinned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_npm(tmp_path / "bin", monkeypatch, code)
    with pytest.raises(WebRuntimeError, match=message):
        runtime_files()


def test_another_version_of_the_package_is_refused(pinned: Path) -> None:
    wasm = pinned / "dist" / "ort-wasm-simd-threaded.wasm"
    wasm.write_bytes(b"another")
    with pytest.raises(WebRuntimeError, match=r"ort-wasm-simd-threaded\.wasm: not the file of "
                                              r"onnxruntime-web@1\.30\.0: expected SHA-256"):
        runtime_files(pinned)
    wasm.unlink()
    with pytest.raises(WebRuntimeError, match=r"cannot read \(No such file.*unpacked npm package"):
        runtime_files(pinned)


# The sampler, under Node --------------------------------------------------------------

NODE = """
import { Sampler } from "./sampler.js";
import { readFileSync } from "node:fs";
const { cases, expTable, logitFrac } = JSON.parse(readFileSync(0));
console.log(JSON.stringify(cases.map(({ logits, temperature, seed }) => {
  const sampler = new Sampler({ temperature, seed, logitFrac, expTable });
  return [1, 2, 3, 4].map(() => sampler.next(Int32Array.from(logits)));
})));
"""


CASES = st.lists(st.fixed_dictionaries({
    "logits": st.lists(st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(-3000, 3000),
                       min_size=1, max_size=256),
    "temperature": st.just(0) | st.floats(0.01, 100) | st.sampled_from([0.01, 0.7, 1.0, 100]),
    "seed": st.integers(1, (1 << 32) - 1)}), min_size=40, max_size=80)


@pytest.mark.parametrize("logit_frac", [0, 8])
def test_the_sampler_of_the_page_draws_the_same_tokens(
    tmp_path: Path, logit_frac: int,
) -> None:
    def draw(cases: list[dict]) -> list[list[int]]:
        samplers = [Sampler(temperature=case["temperature"], seed=case["seed"],
                            logit_frac=logit_frac) for case in cases]
        return [[sampler(np.array(case["logits"])) for _ in range(4)]
                for case, sampler in zip(cases, samplers, strict=True)]

    found: list[dict] = []

    @given(CASES)
    def collect(cases: list[dict]) -> None:
        found.extend(cases)

    collect()
    # The seed 1 with equal logits makes the generator itself visible.
    found.append({"logits": [0] * 256, "temperature": 1.0, "seed": 1})
    shutil.copy(SOURCES / "sampler.js", tmp_path)
    assert run_in_node(tmp_path, NODE, {
        "cases": found, "expTable": EXP_TABLE.tolist(), "logitFrac": logit_frac}) == draw(found)


def test_the_bundled_models_fit_the_page() -> None:
    for name in BUNDLED:
        model = load_model(name)
        assert 128 <= model.config.vocab == model.tokenizer.vocab
