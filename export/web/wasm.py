"""A model as one file of WebAssembly: its C, compiled by pip's ``ziglang``."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

from sterna.export.c.folder import export_c
from sterna.model.cpp_library import CompileError, NoCompilerError
from sterna.model.extras import install_command
from sterna.model.quantized import QuantizedModel
from sterna.model.tokens.bpe import BytePairTokenizer
from sterna.model.tokens.tokenizer import ByteTokenizer

__all__ = ["build_wasm"]

_ABI = 1
"""Of functions and facts; a page takes no other."""
_LONGEST = 1 << 16
"""Most bytes of a prompt."""
_FLAGS = ("-target", "wasm32-freestanding", "-std=c99", "-O3", "-msimd128", "-mbulk-memory",
          "-nostdlib", "-Wno-c23-extensions", "-Wl,--no-entry", "-Wl,--strip-all")


def build_wasm(model: QuantizedModel) -> tuple[bytes, dict[str, Any]]:
    """Compile ``model``; return the file and the facts in it.

    The file has the weights, the code and, for a language model, sampler and tokenizer; it imports
    nothing. ``sources/page.c`` documents its functions. Its custom section ``sterna`` holds the
    facts as JSON, and the last one the SHA-256 of all bytes before these 32. The same model gives
    the same bytes.

    Raises NoCompilerError if ``ziglang`` is not installed, CompileError if it fails.
    """
    try:
        version("ziglang")
    except PackageNotFoundError:
        raise NoCompilerError(
            f"a page needs the compiler in the package ziglang: {install_command('web')}") from None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "c"
        made = export_c(model, folder, blob=True)
        (folder / "page.c").write_bytes(
            (files("sterna.export.web.sources") / "page.c").read_bytes())
        _compile(folder, [] if model.is_network else [f"-DLONGEST={_LONGEST}"])
        content = (folder / "model.wasm").read_bytes()
    facts = {
        "abi": _ABI,
        **{key: made[key] for key in (
            "version", "model_sha256", "self_test", "value_bits", "results")},
        "entry": str(model.entry), "profile": model.profile_name, "frac": model.logit.frac,
        "ternary_weights": sum(each.weight.size for each in model.projections.values()),
        **(_frame_facts(model) if model.is_network else _text_facts(model))}
    content += _section("sterna", json.dumps(facts, separators=(",", ":")).encode())
    content += _section("sha256", bytes(32))[:-32]
    return content + hashlib.sha256(content).digest(), facts


def _text_facts(model: QuantizedModel) -> dict[str, Any]:
    end = model.tokenizer.end_of_text
    return {"longest": _LONGEST, "end": -1 if end is None else end,
            "numbers": not isinstance(model.tokenizer, ByteTokenizer | BytePairTokenizer)}


def _frame_facts(model: QuantizedModel) -> dict[str, Any]:
    return {"bits": model.entry.high.bit_length() + 1,
            "fraction_bits": model.fraction_bits.tolist()}


def _compile(folder: Path, options: list[str]) -> None:
    command = [sys.executable, "-m", "ziglang", "cc", *_FLAGS, *options, "-Isrc", "-I.", "-o",
               "model.wasm", "page.c", "src/model.c"]
    cache = {f"ZIG_{kind}_CACHE_DIR": str(folder.parent / "cache") for kind in ("GLOBAL", "LOCAL")}
    done = subprocess.run(command, cwd=folder, env={**os.environ, **cache}, capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line]
        raise CompileError(f"ziglang failed on the C of the model: {(lines or ['no message'])[0]}")


def _section(name: str, content: bytes) -> bytes:
    """A custom section of WebAssembly."""
    body = bytes([len(name)]) + name.encode() + content
    return b"\0" + _leb128(len(body)) + body


def _leb128(number: int) -> bytes:
    head, rest = number & 127, number >> 7
    return bytes([head | 128]) + _leb128(rest) if rest else bytes([head])
