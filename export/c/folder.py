"""Write a model as a folder of C99: the form ``c``."""

from __future__ import annotations

import hashlib
import json
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


def export_c(
    model: QuantizedModel, folder: str | Path, *, name: str = "model", blob: bool = False,
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

    Returns
    -------
    Mapping
        The folder's ``params.json``, with the bytes of ``weights``, ``state`` and ``scratch``. The
        same model gives the same bytes.

    Raises
    ------
    ValueError
        If ``name`` cannot begin a name in C, the model has too many merges of bytes, or the folder
        was not written by Sterna (`OutputFolderError`).
    OSError
        If the location cannot be written; nothing has changed then.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"a name in C must be a lower-case letter, then up to 30 of these, digits "
                         f"or underscores, got {name!r}")
    step = Step(model)
    gaps = _gaps(model, step, name, blob)       # appends the tokenizer to the weights
    network = model.is_network
    contents: dict[str, str | bytes] = {
        f"{name}.h": _source("model.h", gaps, name),
        f"{name}.c": _source("model.c", gaps, name),
        "main.c": _source("main_frames.c" if network else "main_text.c", gaps, name),
        "Makefile": _source("Makefile", gaps, name),
        "README.md": _source("README.md", gaps, name)}
    if blob:
        contents[f"{name}.bin"] = bytes(step.weights)
    else:
        contents[f"{name}_weights.c"] = _source(
            "weights.c", {"BYTES": _table(step.weights, "{}", "    ", 20)}, name)
    return write_folder(Path(folder), contents, {
        "kind": "c", "made": [name], "version": version("sterna"), "name": name, "model_sha256": model.sha256,
        "weights": len(step.weights), "state": gaps["STATE_BYTES"],
        "scratch": gaps["SCRATCH_BYTES"], "value_bits": step.value_bits,
        "layers": len(model.states), "results": model.records[-1].width})


def _gaps(model: QuantizedModel, step: Step, name: str, blob: bool) -> dict[str, Any]:
    """What the sources leave open, by name."""
    entry, logit, layers = model.entry, model.logit, len(model.states)
    steps = sample_steps(entry, _BATCH, _LENGTH)
    value_bytes = step.value_bits // 8
    lines = folded(step.calls)
    loops = len(lines) != len(step.calls)
    gaps: dict[str, Any] = {
        "NAME": name, "VERSION": version("sterna"), "SHA256": model.sha256, "RESULTS": model.records[-1].width,
        "RESULT_NAME": entry.result, "FRAC": logit.frac, "LAYERS": layers,
        "WIDTH": model.states[0].width, "VALUE_BITS": step.value_bits, "WIDE_BITS": step.wide_bits,
        "STORED": step.stored_bytes, "LENGTH": _LENGTH,
        "STATE_BYTES": layers * model.states[0].width * value_bytes,
        "SCRATCH_BYTES": sum(length * (1 if kind == "int8_t" else value_bytes)
                             for kind, length in step.places.values()),
        "SCRATCH": "\n".join(f"    {'model_value' if kind == 'value' else kind} {own}[{length}];"
                             for own, (kind, length) in step.places.items() if length),
        "LOCALS": "".join(f"    {kind} {own};\n" for own, (kind, length) in step.places.items()
                          if not length)
                  + ("    const uint8_t *w = weights;\n    int layer;\n" if loops else ""),
        "CALLS": "\n".join(map(_wrapped, lines)), "RESULT": step.result,
        "SHAPE": f"[{entry.shape[0]}]" if entry.shape else "",
        "STEPS": _nested(steps), "FIRST": _words(_fractions(8, 2)),
        "ROUNDS": _words(_fractions(64, 3)),
        "DIGEST": _digest_words(digest_of(*IntegerModel(model).run(steps)))}
    if model.is_network:
        gaps |= {
            "TITLE": f"A network over {entry}, as C99.", "STEP": "frame", "REFUSAL": "",
            "INPUT": "const int32_t frame[MODEL_CHANNELS]", "CHECK": "", "TEXT": "",
            "EXTRAS": "", "RUN": f"./{name} < FRAMES.csv", "SAMPLER": "", "TOKENIZER": "",
            "ENUM": _enum(CHANNELS=entry.shape[0], BITS=entry.high.bit_length() + 1,
                          ONE=1 << logit.frac),
            "FRACTIONS": _table(model.fraction_bits.tolist(), "{}", "        ", 20)}
    else:
        tokenizer, source = model.tokenizer, "numbers.c"
        enum = {"LOWEST": logit.min, "LONGEST": 10, "END": -1}
        if isinstance(tokenizer, ByteTokenizer):
            source, enum["LONGEST"] = "bytes.c", 1
            gaps["REFUSE_BYTE"] = "" if tokenizer.vocab == VOCAB else (
                "        if (text[i] >= MODEL_RESULTS)\n            return -1;\n")
        elif isinstance(tokenizer, BytePairTokenizer):
            source = "pairs.c"
            enum["LONGEST"] = max(map(len, tokenizer.spellings))
            enum["MERGES"] = len(tokenizer.merges)
            gaps |= _store_pairs(tokenizer, step.weights)
        if tokenizer.end_of_text is not None:
            enum["END"] = tokenizer.end_of_text
        gaps |= {
            "TITLE": f"A language model of {entry}, as C99.", "STEP": "token",
            "REFUSAL": ", or NULL if the model lacks the token", "INPUT": "int32_t token",
            "CHECK": "    if (token < 0 || token >= MODEL_RESULTS)\n        return 0;\n",
            "EXTRAS": ", a sampler and the tokenizer", "RUN": f"printf 'The ' | ./{name}",
            "TEXT": _raw("text.h"), "ENUM": _enum(**enum),
            "SHIFT": logit.frac + 4, "POWERS": _table(EXP_TABLE.tolist(), "{}", "        ", 10)}
        gaps |= {"SAMPLER": _filled(_raw("sampler.c"), gaps),
                 "TOKENIZER": _filled(_raw(source), gaps)}
    gaps |= {
        "DECLARED": "" if blob else "extern const uint8_t model_weights[MODEL_WEIGHTS];\n\n",
        "WEIGHTS_FILE": "" if blob else "model_weights.c ",
        "LOADER": _raw("loader.c") if blob else "",
        "LOAD": "    if (!load())\n        return 2;\n" if blob else "",
        "BESIDE": "`model.bin`, which a program maps or puts into flash" if blob
                  else "`model_weights.c`"}
    weights = hashlib.sha256(step.weights).hexdigest()
    gaps |= {"WEIGHTS": len(step.weights), "WEIGHTS_DIGEST": _digest_words(weights)}
    gaps["TEST"] = _filled(_raw("sha256.c"), gaps) + "\n" + _filled(_raw("test.c"), gaps)
    gaps["ARITHMETIC"] = _needed(_raw("arithmetic.c"), gaps["CALLS"])
    return gaps


def _store_pairs(tokenizer: BytePairTokenizer, weights: bytearray) -> dict[str, int]:
    """Append merges and spellings of byte pairs to the weights; return where they are."""
    if len(tokenizer.merges) > _MOST_MERGES:
        raise ValueError(f"a model in C has at most {_MOST_MERGES:,} merges of bytes, got "
                         f"{len(tokenizer.merges):,}")
    token_of = {spelling: token for token, spelling in enumerate(tokenizer.spellings)}
    merges = sorted(
        (left, right, rank, token_of[tokenizer.spellings[left] + tokenizer.spellings[right]])
        for rank, (left, right) in enumerate(tokenizer.merges.tolist()))
    ends = np.cumsum([0, *map(len, tokenizer.spellings)])
    places = {}
    for place, content in (("MERGES", np.array(merges, "<u2")), ("ENDS", ends.astype("<u4")),
                           ("SPELLINGS", b"".join(tokenizer.spellings))):
        places[place] = len(weights)
        weights += bytes(content)
    return places


# Text of C ----------------------------------------------------------------------------


def _raw(name: str) -> str:
    return (files("sterna.export.c.sources") / name).read_text(encoding="utf-8")


def _source(source: str, gaps: Mapping[str, Any], name: str) -> str:
    """A source with its gaps filled, and the name of the model in place of ``model``."""
    text = _filled(_raw(source), gaps)
    text = re.sub(r"\bmodel(?=_[a-z]|\.(?:h|c|bin)\b)", name, text)
    return re.sub(r"\bMODEL_", f"{name.upper()}_", text)


def _filled(text: str, gaps: Mapping[str, Any]) -> str:
    return re.sub(r"@([A-Z][A-Z0-9_]*)@", lambda gap: str(gaps.get(gap[1], gap[0])), text)


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
    return "\n".join(f"    MODEL_{name} = {value}," for name, value in numbers.items())


def _wrapped(line: str) -> str:
    """A line in ones of at most 100 characters, indented like its arguments."""
    return textwrap.fill(line, 100, subsequent_indent=" " * (line.find("(") + 1),
                         drop_whitespace=True, break_on_hyphens=False)


def _table(values: Iterable[object], form: str, indent: str, per_line: int) -> str:
    words = [form.format(value) for value in values]
    return ",\n".join(indent + ", ".join(words[i:i + per_line])
                      for i in range(0, len(words), per_line))


def _words(values: Iterable[int]) -> str:
    return _table(values, "0x{:08x}", "        ", 8)


def _digest_words(digest: str) -> str:
    return _words(int(digest[i:i + 8], 16) for i in range(0, 64, 8))


def _nested(array: np.ndarray) -> str:
    """An array as an initialiser, without its outer braces."""
    text = json.dumps(array.tolist()).replace("[", "{").replace("]", "}")[1:-1]
    return "        " + text.replace("}, {", "},\n        {")


def _fractions(count: int, power: int) -> list[int]:
    """The first 32 bits behind the point of the square or cube roots of the first primes, as
    SHA-256 takes them."""
    primes = [n for n in range(2, 312) if all(n % divisor for divisor in range(2, isqrt(n) + 1))]
    return [_root(prime << 32 * power, power) & 0xFFFF_FFFF for prime in primes[:count]]


def _root(value: int, power: int) -> int:
    """floor(value ** (1 / power))"""
    low, high = 0, 1 << value.bit_length() // power + 1
    while low < high - 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle ** power <= value else (low, middle)
    return low
