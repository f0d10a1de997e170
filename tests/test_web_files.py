"""Writing the page: contents, repeatability, refusals; where its runtime comes from."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

import onnx
import pytest

from sterna.cli.main import main
from sterna.export.web import page as webruntime
from sterna.export.web.page import WebRuntimeError, runtime_files, write_page
from sterna.model.config import ModelConfig
from sterna.model.folder import OutputFolderError
from sterna.model.profile import S16
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.sampling import EXP_TABLE
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


def fake_npm(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Put a program called npm on PATH, alone."""
    folder.mkdir(exist_ok=True)
    npm = folder / "npm"
    npm.write_text(f"#!{sys.executable}\nimport sys, tarfile\n{code}\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_a_page_has_all_it_needs_and_the_same_bytes_each_time(small, pinned, tmp_path):
    params = write_page(small, tmp_path / "a", runtime=pinned)
    write_page(small, tmp_path / "b", runtime=pinned / "dist")
    write_page(small, tmp_path / "b", runtime=pinned)       # our own folder is replaced
    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    assert files["ort.wasm"] == STAND_IN["ort-wasm-simd-threaded.wasm"]
    sources = {path.name for path in (Path(webruntime.__file__).parent / "sources").iterdir()
               if path.suffix in (".js", ".html", ".css", ".txt")}
    assert set(files) == sources | {
        "check.json", "model.onnx", "ort.js", "ort.wasm", "params.json"}
    assert params["files"] == {
        name: hashlib.sha256(data).hexdigest() for name, data in files.items()
        if name != "params.json"}
    assert params["exp_table"] == EXP_TABLE.tolist()
    onnx.checker.check_model(str(tmp_path / "a" / "model.onnx"), full_check=True)
    ours = b"".join(files[name] for name in sources)
    assert set(re.findall(rb"(?:https?:)?//[\w.:]+", ours)) <= {b"http://localhost:8000."}


def test_what_cannot_become_a_page_is_refused(small, pinned, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    other = random_model(ModelConfig(d=8, layers=1, dff=12, vocab=65), S16)
    for model, folder, options, message in (
        # Before anything is fetched.
        (small, "page", {"form": "fast", "runtime": tmp_path / "none"}, "exact form, got fast"),
        (other, "page", {}, "at least 128 tokens, of bytes or byte pairs, got 65"),
        (small, "page", {"check_tokens": 16}, r"must have at least 17 tokens .* got 16"),
        (small, "mine", {}, r"did not write \(notes.txt\)"),
    ):
        with pytest.raises((ValueError, OutputFolderError), match=message):
            write_page(model, tmp_path / folder, **{"runtime": pinned, **options})
    assert not (tmp_path / "page").exists()
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


# The runtime --------------------------------------------------------------------------


def test_the_runtime_comes_from_npm_once(pinned, tmp_path, monkeypatch):
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


def test_without_npm_the_message_says_what_to_do(pinned, monkeypatch, capsys, tmp_path):
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
def test_a_failing_npm_is_reported(code, message, pinned, tmp_path, monkeypatch):
    fake_npm(tmp_path / "bin", monkeypatch, code)
    with pytest.raises(WebRuntimeError, match=message):
        runtime_files()


def test_another_version_of_the_package_is_refused(pinned):
    wasm = pinned / "dist" / "ort-wasm-simd-threaded.wasm"
    wasm.write_bytes(b"another")
    with pytest.raises(WebRuntimeError, match=r"ort-wasm-simd-threaded\.wasm: not the file of "
                                              r"onnxruntime-web@1\.30\.0: expected SHA-256"):
        runtime_files(pinned)
    wasm.unlink()
    with pytest.raises(WebRuntimeError, match=r"cannot read \(No such file.*unpacked npm package"):
        runtime_files(pinned)
