"""Write a model as a folder of C99: the form ``c``."""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from importlib.resources import files
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np

from sterna.export.c.layers import folded
from sterna.export.c.step import Step
from sterna.export.forms.selftest import digest_of, sample_steps
from sterna.model.folder import write_folder
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.sampling import EXP_TABLE
from sterna.model.tokenizer import VOCAB
from sterna.model.tokens.bpe import BytePairTokenizer
from sterna.model.tokens.tokenizer import ByteTokenizer

__all__ = ["export_c"]

_BATCH, _LENGTH = 2, 8
_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")
_MOST_MERGES = (1 << 16) - 1
_MEANINGS = {
    "WEIGHTS": "bytes of weights", "LAYERS": "vectors of a state", "WIDTH": "values of each",
    "LOWEST": "no logit is less", "LONGEST": "most bytes that a token spells",
    "END": "the token that ends a text, -1 for none", "MERGES": "of two tokens",
    "CHANNELS": "numbers of a frame", "BITS": "signed bits of each", "ONE": "a result of 1.0"}
"""What the constants in the header mean."""


def export_c(
    model: QuantizedModel, folder: str | Path, *, name: str = "model", blob: bool = False,
    ram: int | None = None, flash: int | None = None,
) -> Mapping[str, Any]:
    """Write ``model`` as C99 that computes the integers of the reference.

    Parameters
    ----------
    model
        A language model, or a network over frames.
    folder
        Output folder. One written by Sterna is replaced, any other is refused.
    name
        Beginning of every name in C and of the files: a lower-case letter, then letters, digits and
        underscores.
    blob
        Write the weights to ``NAME.bin`` instead of ``NAME_weights.c``.
    ram, flash
        Most bytes of the state and the scratch, and of the weights; None for no limit. A compiler
        adds the stack and the code to them.

    Returns
    -------
    Mapping
        The folder's ``params.json``, with the bytes of ``weights``, ``state`` and ``scratch``, and
        the digest of the ``self_test``. The same model gives the same bytes.

    Raises
    ------
    ValueError
        If ``name`` cannot begin a name in C, the model needs more bytes than are allowed or has too
        many merges, or the folder was not written by Sterna (`OutputFolderError`).
    OSError
        If the location cannot be written; nothing has changed then.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"a name in C must be a lower-case letter, then up to 30 of these, digits "
                         f"or underscores, got {name!r}")
    step = Step(model)
    text = {} if model.is_network else _text_gaps(model, step.weights)
    value_bytes = step.value_bits // 8
    facts: dict[str, Any] = {
        "kind": "c", "made": [name], "version": version("sterna"), "name": name,
        "model_sha256": model.sha256, "value_bits": step.value_bits,
        "layers": len(model.states), "results": model.records[-1].width,
        "weights": len(step.weights),
        "state": len(model.states) * model.states[0].width * value_bytes,
        "scratch": sum(length * (1 if kind == "int8_t" else value_bytes)
                       for kind, length in step.places.values())}
    for what, needs, allowed in (
            ("the state and the scratch", facts["state"] + facts["scratch"], ram),
            ("the weights", facts["weights"], flash)):
        if allowed is not None and needs > allowed:
            raise ValueError(f"{what} take {needs:,} bytes, and {allowed:,} are allowed")
    steps = sample_steps(model.entry, _BATCH, _LENGTH)
    facts["self_test"] = digest_of(*IntegerModel(model).run(steps))
    gaps = {
        **{key.upper(): value for key, value in facts.items()}, **_step_gaps(step),
        **_test_gaps(model, step.weights, facts["self_test"]), **_blob_gaps(blob),
        **(_frame_gaps(model, name) if model.is_network else text | {"RUN": f"./{name}"})}
    for part in ("TEXT", "TEST", "SAMPLER", "TOKENIZER"):
        gaps[part] = "".join(_filled(_raw(source), gaps) for source in gaps.get(part, ()))

    def source(file: str) -> str:
        # The name of the model in place of `model`.
        own = re.sub(r"\bmodel(?=_[a-z]|\.(?:h|c|bin)\b)", name, _filled(_raw(file), gaps))
        return re.sub(r"\bMODEL_", f"{name.upper()}_", own)

    kind = "frames" if model.is_network else "text"
    contents: dict[str, str | bytes] = {
        f"src/{name}.h": source("model.h"), f"src/{name}.c": source("model.c"),
        "main.c": source(f"main_{kind}.c"), "Makefile": source("Makefile"),
        "README.md": source("README.md")}
    if blob:
        contents[f"{name}.bin"] = bytes(step.weights)
    else:
        gaps["BYTES"] = _table(step.weights, "{}", 20)
        contents[f"src/{name}_weights.c"] = source("weights.c")
        contents["library.properties"] = source("library.properties")
        contents[f"examples/{name}/{name}.ino"] = source(f"sketch_{kind}.ino")
    return write_folder(Path(folder), contents, facts)


# The gaps of the sources, by name -----------------------------------------------------


def _step_gaps(step: Step) -> dict[str, Any]:
    """Of the step, its buffers and arithmetic."""
    model, entry = step.model, step.model.entry
    lines = folded(step.calls)
    declared = [f"{kind} {own};" for own, (kind, length) in step.places.items() if not length]
    if len(lines) < len(step.calls):
        declared += ["const uint8_t *w = weights;", "int layer;"]
    calls = "\n".join(_wrapped(line) for line in lines)
    return {
        "ARITHMETIC": _needed(_raw("arithmetic.c"), calls), "CALLS": calls, "RESULT": step.result,
        "LOCALS": "".join(f"    {each}\n" for each in declared),
        "SCRATCH_ARRAYS": "\n".join(
            f"    {'model_value' if kind == 'value' else kind} {own}[{length}];"
            for own, (kind, length) in step.places.items() if length),
        "STORED": step.stored_bytes, "WIDE_BITS": step.wide_bits, "RESULT_NAME": entry.result,
        "SIZES": "\n".join([
            _enum(WEIGHTS=len(step.weights)),
            _constant("RESULTS", model.records[-1].width,
                      f"{entry.result} of a step, {model.logit.frac} fraction bits"),
            _enum(LAYERS=len(model.states), WIDTH=model.states[0].width)])}


def _text_gaps(model: QuantizedModel, weights: bytearray) -> dict[str, Any]:
    """Of a language model; appends its tokenizer to the weights."""
    tokenizer, logit = model.tokenizer, model.logit
    own: dict[str, Any] = {"TOKENIZER": ["numbers.c"]}
    longest, merges = 10, {}
    if isinstance(tokenizer, ByteTokenizer):
        longest = 1
        own = {"TOKENIZER": ["bytes.c"], "REFUSE_BYTE": "" if tokenizer.vocab == VOCAB else (
            "        if (text[i] >= MODEL_RESULTS)\n            return -1;\n")}
    elif isinstance(tokenizer, BytePairTokenizer):
        longest, merges = max(map(len, tokenizer.spellings)), {"MERGES": len(tokenizer.merges)}
        own = {"TOKENIZER": ["pairs.c"], **_store_pairs(tokenizer, weights)}
    end = tokenizer.end_of_text
    return own | {
        "TITLE": f"A language model of {model.entry}, as C99.", "STEP": "token",
        "REFUSAL": ", or NULL if the model lacks the token", "INPUT": "int32_t token",
        "CHECK": "    if (token < 0 || token >= MODEL_RESULTS)\n        return 0;\n",
        "EXTRAS": ", a sampler and the tokenizer", "TEXT": ["text.h"], "SAMPLER": ["sampler.c"],
        "ENUM": _enum(LOWEST=logit.min, LONGEST=longest, END=-1 if end is None else end, **merges),
        "SHIFT": logit.frac + 4, "POWERS": _table((EXP_TABLE - 1).tolist(), "{}", 10)}


def _frame_gaps(model: QuantizedModel, name: str) -> dict[str, Any]:
    """Of a network over frames."""
    channels, = model.entry.shape
    return {
        "TITLE": f"A network over {model.entry}, as C99.", "STEP": "frame", "REFUSAL": "",
        "CHANNELS": channels,
        "INPUT": "const int32_t frame[MODEL_CHANNELS]", "CHECK": "",
        "EXTRAS": "", "RUN": f"./{name} < FRAMES.csv",
        "ENUM": _enum(CHANNELS=channels, BITS=model.entry.high.bit_length() + 1,
                      ONE=1 << model.logit.frac),
        "FRACTIONS": _table(model.fraction_bits.tolist(), "{}", 20)}


def _test_gaps(model: QuantizedModel, weights: bytearray, digest: str) -> dict[str, Any]:
    """Of the self-test: the steps of the test in ONNX files, and the same digest."""
    return {
        "TEST": ["sha256.c", "test.c"], "LENGTH": _LENGTH,
        "STEP_OF_TEST": _raw("test_frame.c" if model.is_network else "test_token.c"),
        "DIGEST": _digest(digest),
        "WEIGHTS_DIGEST": _digest(hashlib.sha256(weights).hexdigest()),
        "FIRST": _words(_fractions(8, 2)), "ROUNDS": _words(_fractions(64, 3))}


def _blob_gaps(blob: bool) -> dict[str, Any]:
    """Of where the weights are."""
    if blob:
        return {"DECLARED": "", "WEIGHTS_FILE": "", "LOADER": _raw("loader.c"),
                "LOAD": "    if (!load())\n        return 2;\n",
                "BESIDE": "`model.bin`, for a program to map or for flash", "ARDUINO": ""}
    return {"DECLARED": "extern const uint8_t model_weights[MODEL_WEIGHTS];\n\n",
            "WEIGHTS_FILE": "src/model_weights.c ", "LOADER": "", "LOAD": "",
            "BESIDE": "`src/model_weights.c`", "ARDUINO": _raw("arduino.md")}


def _store_pairs(tokenizer: BytePairTokenizer, weights: bytearray) -> dict[str, int]:
    """Append merges and spellings of byte pairs to the weights; return where they are."""
    if len(tokenizer.merges) > _MOST_MERGES:
        raise ValueError(f"a model in C has at most {_MOST_MERGES:,} merges of bytes, got "
                         f"{len(tokenizer.merges):,}")
    spellings = tokenizer.spellings
    token_of = {spelling: token for token, spelling in enumerate(spellings)}
    merges = sorted((left, right, rank, token_of[spellings[left] + spellings[right]])
                    for rank, (left, right) in enumerate(tokenizer.merges.tolist()))
    ends = np.cumsum([0, *map(len, spellings)])
    places = {}
    for place, content in (("MERGES", np.array(merges, "<u2").tobytes()),
                           ("ENDS", ends.astype("<u4").tobytes()),
                           ("SPELLINGS", b"".join(spellings))):
        places[place] = len(weights)
        weights += content
    return places


# Text of C ----------------------------------------------------------------------------


def _raw(name: str) -> str:
    return (files("sterna.export.c.sources") / name).read_text(encoding="utf-8")


def _filled(text: str, gaps: Mapping[str, Any]) -> str:
    """A source with the gaps ``@NAME@`` filled, also those of what fills them."""
    return re.sub(r"@([A-Z][A-Z0-9_]*)@", lambda gap: _filled(str(gaps[gap[1]]), gaps), text)


def _needed(text: str, calls: str) -> str:
    """The functions of a source that are called, and those that these call."""
    blocks = text.rstrip().split("\n\n")
    names = [re.findall(r"^(?:static .*?|#define )(\w+)(?=\(| dot$)", block, re.MULTILINE)
             for block in blocks]
    wanted, found = calls, set[int]()
    while more := {i for i, own in enumerate(names) if i not in found and any(
            re.search(rf"\b{name}\(", wanted) for name in own)}:
        found |= more
        wanted = "\n".join(blocks[i] for i in more)
    return "\n\n".join(blocks[i] for i in sorted(found))


def _enum(**numbers: int) -> str:
    """Constants for the header, each with what it is."""
    return "\n".join(_constant(name, value, _MEANINGS[name]) for name, value in numbers.items())


def _constant(name: str, value: int, meaning: str) -> str:
    return f"{f'    MODEL_{name} = {value},':<32}/* {meaning} */"


def _wrapped(line: str) -> str:
    """A line in ones of at most 100 characters, indented like its arguments."""
    return textwrap.fill(line, 100, subsequent_indent=" " * (line.find("(") + 1),
                         break_on_hyphens=False)


def _table(values: Iterable[object], form: str, per_line: int) -> str:
    words = [form.format(value) for value in values]
    return ",\n".join("        " + ", ".join(words[i:i + per_line])
                      for i in range(0, len(words), per_line))


def _words(values: Iterable[int]) -> str:
    return _table(values, "0x{:08x}", 8)


def _digest(digest: str) -> str:
    return _words(int(digest[i:i + 8], 16) for i in range(0, 64, 8))


def _fractions(count: int, power: int) -> list[int]:
    """The first 32 bits behind the point of the square or cube roots of the first primes: the
    constants of SHA-256."""
    primes = [n for n in range(2, 312) if all(n % divisor for divisor in range(2, isqrt(n) + 1))]
    return [_root(prime << 32 * power, power) & 0xFFFF_FFFF for prime in primes[:count]]


def _root(value: int, power: int) -> int:
    """floor(value ** (1 / power))"""
    low, high = 0, 1 << value.bit_length() // power + 1
    while low < high - 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle ** power <= value else (low, middle)
    return low
