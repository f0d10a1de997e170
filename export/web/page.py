"""A model as a static web page: a folder that any web server can serve.

The page writes text in the browser, and compares its integers with values that the integer
reference computed when the page was made (docs/web.md). Two files of onnxruntime's npm package
suffice for one thread on the CPU: a JavaScript module and its WebAssembly. Both are pinned by
SHA-256, so their source does not matter.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from sterna.export.forms.forms import Form, build, serialize
from sterna.model.cache import cache_folder
from sterna.model.checks import one_of
from sterna.model.files import write_atomically
from sterna.model.folder import write_folder
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.sampling import EXP_TABLE, Sampler
from sterna.model.tokenizer import ASCII_VOCAB
from sterna.model.tokens.bpe import WORD_PATTERN, BytePairTokenizer
from sterna.model.tokens.tokenizer import BYTES, ByteTokenizer, Tokenizer

__all__ = ["CHECK_PROMPT", "WEB_RUNTIME", "WEB_RUNTIME_VERSION", "WebRuntimeError",
           "record_reference", "runtime_cache", "runtime_files", "write_page"]

CHECK_PROMPT = "The for statement"
"""Prompt of the recorded run of the reference."""

_CHECK_TEMPERATURE, _CHECK_SEED = 0.7, 1
_CHECK_FORMAT = 1
# Names under which the page loads the runtime. All servers know the type of .js, not all of .mjs.
_RUNTIME_NAMES = {"ort.wasm.bundle.min.mjs": "ort.js", "ort-wasm-simd-threaded.wasm": "ort.wasm"}
WEB_RUNTIME_VERSION = "1.30.0"
"""Tested version of the npm package onnxruntime-web."""
WEB_RUNTIME = {
    "ort.wasm.bundle.min.mjs":
        "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    "ort-wasm-simd-threaded.wasm":
        "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
"""SHA-256 of the files used from the package's folder ``dist``."""
_PACKAGE = f"onnxruntime-web@{WEB_RUNTIME_VERSION}"
_NPM_SECONDS = 600
_TOKENIZERS = (ByteTokenizer.kind, BytePairTokenizer.kind)      # supported by text.js


def write_page(
    model: QuantizedModel, folder: str | Path, *, check_tokens: int = 64,
    runtime: Path | None = None, form: Form | str = Form.WEB,
) -> Mapping[str, Any]:
    """Write the page of ``model``: sources, model, runtime and the recorded reference.

    Parameters
    ----------
    model
        The quantised model; its tokens are byte pairs, bytes (256) or ASCII (128).
    folder
        Output folder. One written by Sterna is replaced, any other is refused.
    check_tokens
        Tokens of the recorded run, including those of the prompt.
    runtime
        The unpacked npm package onnxruntime-web; None takes it from the cache or from npm.
    form
        An exact form of the graph.

    Returns
    -------
    Mapping
        The page's ``params.json``. The same model gives the same bytes.

    Raises
    ------
    ValueError
        If the vocabulary is unsupported, ``check_tokens`` too small, the form not exact or not
        suited to the model, the runtime unavailable (`WebRuntimeError`) or the folder not
        written by Sterna (`OutputFolderError`).
    OSError
        If the location cannot be written; nothing has changed then.
    """
    form = one_of("form", form, Form)
    model.entry.check_text()
    if not form.exact:
        raise ValueError(f"the page needs an exact form, got {form.value}")
    if model.tokenizer.kind not in _TOKENIZERS or model.vocab < ASCII_VOCAB:
        raise ValueError(
            f"the page writes text: expected at least {ASCII_VOCAB} tokens, of bytes or byte "
            f"pairs, got {model.vocab} of the kind {model.tokenizer.kind}")
    contents: dict[str, str | bytes] = {
        entry.name: entry.read_bytes() for entry in files("sterna.export.web.sources").iterdir()
        if entry.is_file() and not entry.name.endswith((".py", ".pyc"))}
    contents["check.json"] = json.dumps(
        record_reference(model, check_tokens), separators=(",", ":")) + "\n"
    contents["model.onnx"] = serialize(build(model, form, one_token=True))
    contents |= {_RUNTIME_NAMES[name]: data for name, data in runtime_files(runtime).items()}
    return write_folder(Path(folder), contents, _facts(model))


def record_reference(model: QuantizedModel, tokens: int) -> dict[str, Any]:
    """Run the integer reference and the sampler, and record every integer that the page compares.

    ``tokens`` counts those of :data:`CHECK_PROMPT` and those that the sampler draws after them.

    Returns ``tokens`` ``[tokens + 1]``, the last one drawn but not run; ``prompt``, the number of
    prompt tokens; ``logits`` ``[tokens, vocab]``; ``state`` ``[layers * d]`` after the last;
    ``temperature`` and ``seed`` of the sampler.
    """
    row = model.tokenizer.encode(CHECK_PROMPT).tolist()
    prompt = len(row)
    if tokens < prompt:
        raise ValueError(
            f"the recorded run must have at least {prompt} tokens (the prompt "
            f"{CHECK_PROMPT!r}), got {tokens}")
    reference = IntegerModel(model)
    sampler = Sampler(
        temperature=_CHECK_TEMPERATURE, seed=_CHECK_SEED, logit_frac=model.logit.frac)
    state = reference.start(1)
    logits = []
    for t in range(tokens):
        values, state = reference.step(np.array([row[t]]), state)
        logits.append(np.asarray(values[0]).tolist())
        if t + 1 >= prompt:
            row.append(sampler(np.asarray(values[0])))
    return {
        "format": _CHECK_FORMAT, "temperature": _CHECK_TEMPERATURE, "seed": _CHECK_SEED,
        "prompt": prompt, "tokens": row, "logits": logits,
        "state": np.asarray(state).reshape(-1).tolist()}


def _facts(model: QuantizedModel) -> dict[str, Any]:
    """The facts about the model that the page needs."""
    return {
        "kind": "web", "version": version("sterna"), "onnxruntime_web": WEB_RUNTIME_VERSION,
        "model_sha256": model.sha256, "config": model.config.to_json(),
        "ternary_weights": model.config.ternary_weights, "profile": model.profile_name,
        "logit_frac": model.logit.frac, "exp_table": EXP_TABLE.tolist(),
        "tokenizer": _tokenizer(model.tokenizer)}


def _tokenizer(tokenizer: Tokenizer) -> Any:
    """A tokenizer for text.js, with the word pattern, so that it is defined only once."""
    content = tokenizer.to_json()
    return content if tokenizer.kind == BYTES.kind else {**content, "words": WORD_PATTERN}


class WebRuntimeError(ValueError):
    """onnxruntime-web is unavailable, or has the wrong version."""


def runtime_cache() -> Path:
    """The folder of the cached files: in ``STERNA_CACHE``, else in the user's cache.

    >>> runtime_cache().name == f"onnxruntime-web-{WEB_RUNTIME_VERSION}"
    True
    """
    return cache_folder() / f"onnxruntime-web-{WEB_RUNTIME_VERSION}"


def runtime_files(folder: Path | None = None) -> dict[str, bytes]:
    """Return the files of :data:`WEB_RUNTIME`, checked.

    They are read from ``folder``, the unpacked package or its ``dist`` folder; without one from the
    cache, else fetched once from npm, without running scripts of the package. Raises
    WebRuntimeError if npm is missing or fails, or a file is missing or of another version.
    """
    if folder is not None:
        return _read_all(folder / "dist" if (folder / "dist").is_dir() else folder)
    cache = runtime_cache()
    try:
        return _read_all(cache)
    except WebRuntimeError:
        files = _from_npm()
    cache.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        write_atomically(cache / name, data)
    return files


def _read_all(folder: Path) -> dict[str, bytes]:
    files = {}
    for name in WEB_RUNTIME:
        try:
            data = (folder / name).read_bytes()
        except OSError as error:
            raise WebRuntimeError(
                f"{folder / name}: cannot read ({error.strerror or error}); expected the "
                f"unpacked npm package {_PACKAGE}, or its folder dist") from error
        files[name] = _checked(name, data, str(folder / name))
    return files


def _checked(name: str, data: bytes, place: str) -> bytes:
    found = hashlib.sha256(data).hexdigest()
    if found != WEB_RUNTIME[name]:
        raise WebRuntimeError(
            f"{place}: not the file of {_PACKAGE}: expected SHA-256 {WEB_RUNTIME[name]}, "
            f"got {found}")
    return data


def _from_npm() -> dict[str, bytes]:
    npm = shutil.which("npm")
    if npm is None:
        raise WebRuntimeError(
            f"the page needs the npm package {_PACKAGE}, and npm is not installed: install "
            f"npm (Debian and Ubuntu: apt-get install npm), or unpack the package yourself "
            f"and name its folder with --ort")
    with tempfile.TemporaryDirectory(prefix="sterna-npm-") as temporary:
        _npm_pack(npm, temporary)
        archives = sorted(Path(temporary).glob("*.tgz"))
        if len(archives) != 1:
            raise WebRuntimeError(f"npm pack {_PACKAGE} wrote {len(archives)} archives, not one")
        try:
            with tarfile.open(archives[0]) as archive:
                return {name: _checked(name, _member(archive, name), f"npm's {name}")
                        for name in WEB_RUNTIME}
        except tarfile.TarError as error:
            raise WebRuntimeError(f"npm's archive of {_PACKAGE} is damaged ({error})") from error


def _npm_pack(npm: str, folder: str) -> None:
    command = [npm, "pack", _PACKAGE, "--pack-destination", folder, "--ignore-scripts"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_NPM_SECONDS,
            check=False)
    except subprocess.TimeoutExpired as error:
        raise WebRuntimeError(
            f"npm pack {_PACKAGE} took longer than {_NPM_SECONDS} s") from error
    if done.returncode:
        reason = " ".join(line for line in done.stderr.splitlines()
                          if "error" in line.lower())[:300]
        raise WebRuntimeError(
            f"npm pack {_PACKAGE} failed ({reason or f'exit code {done.returncode}'}); without "
            f"a network, name the folder of the unpacked package with --ort")


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    try:
        member = archive.extractfile(f"package/dist/{name}")
    except KeyError:
        member = None
    if member is None:
        raise WebRuntimeError(f"npm's archive of {_PACKAGE} has no dist/{name}")
    return member.read()
