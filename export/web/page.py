"""A model as a static web page: a folder that any web server can hand out.

The page writes text in the browser, and compares its integers with values that the integer
reference computed when the page was made (`docs/web.md`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from sterna.export.forms.forms import Form, build
from sterna.export.forms.writer import serialize
from sterna.export.graph.metadata import GraphKind
from sterna.export.web.runtime_files import WEB_RUNTIME_VERSION, runtime_files
from sterna.model.checks import one_of
from sterna.model.folder import write_folder
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.sampling import EXP_TABLE, Sampler
from sterna.model.tokenizer import ASCII_VOCAB
from sterna.model.tokens.bpe import WORD_PATTERN
from sterna.model.tokens.tokenizer import BYTES, Tokenizer

__all__ = ["CHECK_PROMPT", "WebPage", "record_reference", "write_page"]

CHECK_PROMPT = "The for statement"
"""Text that the recorded run of the reference continues."""

_CHECK_TEMPERATURE, _CHECK_SEED = 0.7, 1
_CHECK_FORMAT = 1
# Names under which the page loads the runtime. Servers know the type of .js; not all know .mjs.
_RUNTIME_NAMES = {"ort.wasm.bundle.min.mjs": "ort.js", "ort-wasm-simd-threaded.wasm": "ort.wasm"}


@dataclass(frozen=True, slots=True)
class WebPage:
    """A page that was written; its ``manifest`` is ``params.json``, which the page reads, too."""

    folder: Path
    manifest: Mapping[str, Any]


def write_page(
    model: QuantizedModel, folder: str | Path, *, check_tokens: int = 64,
    runtime: Path | None = None, form: Form | str = Form.WEB,
) -> WebPage:
    """Write the page of ``model``: sources, model, runtime and the recorded reference.

    Parameters
    ----------
    model
        The quantised model; its tokens are byte pairs, bytes (256) or ASCII (128).
    folder
        Where to write. A folder that Sterna wrote is replaced, any other is refused.
    check_tokens
        Tokens of the recorded run, those of the prompt among them.
    runtime
        The unpacked npm package onnxruntime-web; None takes it from the cache or from npm.
    form
        An exact form of the graph.

    Returns
    -------
    WebPage
        The same model gives the same bytes.

    Raises
    ------
    ValueError
        If the vocabulary is another, ``check_tokens`` too small, the form not exact, the model
        does not fit the form, the runtime cannot be had (`WebRuntimeError`) or the folder is
        not ours (`OutputFolderError`).
    OSError
        If the place cannot be written; nothing has changed then.
    """
    form = one_of("form", form, Form)
    if not form.exact:
        raise ValueError(f"the page needs an exact form, got {form.value}")
    if not ASCII_VOCAB <= model.config.vocab == model.tokenizer.vocab:
        raise ValueError(
            f"the page writes text: expected a vocabulary of at least {ASCII_VOCAB} tokens that "
            f"its tokenizer spells, got {model.config.vocab} and {model.tokenizer.vocab}")
    contents: dict[str, str | bytes] = {
        entry.name: entry.read_bytes() for entry in files("sterna.export.web.sources").iterdir()
        if entry.is_file() and not entry.name.endswith((".py", ".pyc"))}
    contents["check.json"] = json.dumps(
        record_reference(model, check_tokens), separators=(",", ":")) + "\n"
    contents["model.onnx"] = serialize(build(model, form, GraphKind.STEP))
    contents |= {_RUNTIME_NAMES[name]: data for name, data in runtime_files(runtime).items()}
    manifest = write_folder(Path(folder), contents, _facts(model))
    return WebPage(Path(folder), manifest)


def record_reference(model: QuantizedModel, tokens: int) -> dict[str, Any]:
    """Run the integer reference, and the sampler, and record every integer the page compares.

    Parameters
    ----------
    model
        The quantised model.
    tokens
        Tokens to run: those of :data:`CHECK_PROMPT`, then as the sampler draws them.

    Returns
    -------
    dict
        ``tokens`` ``[tokens + 1]``, the last one drawn but not run; ``prompt``, how many of
        them are the prompt; ``logits`` ``[tokens, vocab]``; ``state`` ``[layers * d]`` after
        the last; ``temperature`` and ``seed`` of the sampler.

    Raises
    ------
    ValueError
        If there are fewer tokens than the prompt has.
    """
    row = model.tokenizer.encode(CHECK_PROMPT).tolist()
    prompt = len(row)
    if tokens < prompt:
        raise ValueError(
            f"the recorded run must have at least {prompt} tokens (the prompt "
            f"{CHECK_PROMPT!r}), got {tokens}")
    reference = IntegerModel(model)
    sampler = Sampler(
        temperature=_CHECK_TEMPERATURE, seed=_CHECK_SEED, logit_frac=model.profile.logit.frac)
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
    """What the page has to know of the model."""
    return {
        "kind": "web", "version": version("sterna"), "onnxruntime_web": WEB_RUNTIME_VERSION,
        "model_sha256": model.sha256, "config": model.config.to_json(),
        "ternary_weights": model.config.ternary_weights, "profile": model.profile.name,
        "logit_frac": model.profile.logit.frac, "exp_table": EXP_TABLE.tolist(),
        "tokenizer": _tokenizer(model.tokenizer)}


def _tokenizer(tokenizer: Tokenizer) -> Any:
    """A tokenizer as text.js takes it; the pattern of words goes along, so that it is one."""
    content = tokenizer.to_json()
    return content if tokenizer.kind == BYTES.kind else {**content, "words": WORD_PATTERN}
