"""Checksums of all that Sterna writes for a matrix of models, units and options.

The matrix is what a user would type: command lines, and the top modules of the boards. Run as
a script it compares what is written now with ``data/emitted_bytes.json``, names each file that
differs, and with ``--write`` takes the new checksums::

    python tests/emitted_bytes.py [--write] [CASE ...]
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sterna.model.config import ModelConfig
from sterna.model.layers import BitLinearLayer, GluLayer, MlgruLayer, TernaryMatrix
from sterna.model.profile import C12, S16, FixedPoint
from sterna.model.quantized.synthetic import random_model

RECORDED = Path(__file__).parent / "data" / "emitted_bytes.json"
# Whatever begins with $, or has another odd character, is escaped in Verilog.
_ESCAPED = re.compile(rb"\\\S+")
STYLES = ("generic", "ecp5-chain", "xc7-pair")

_SHAPE = ModelConfig(d=12, layers=2, dff=21, vocab=65)
MODELS = {
    "odd": random_model(_SHAPE, S16, seed=7),
    "odd-c12": random_model(_SHAPE, C12, seed=7),
    "line": random_model(ModelConfig(d=8, layers=1, dff=12, vocab=128), C12, seed=3),
}

_UNITS = (
    "mac --rows 1 --cols 8", "mac --rows 3 --cols 21",
    *(f"mac --rows 4 --cols 12 --style {style}" for style in STYLES[1:]),
    "mlgru --lanes 4", "mlgru --lanes 2 --trace",
    "glu --lanes 4", "glu --lanes 3 --trace",
    "core --rows 2 --cols 8",
)
_CORES = (
    "core --rows 4 --cols 16 --quant-lanes 8 --sequences 2 --trace --style xc7-pair",
    "core --rows 4 --cols 8 --port-bits 32 --style ecp5-chain",
    "core --rows 1 --cols 4 --compact --trace",
)


def command_lines() -> list[str]:
    """Every command of the matrix; MODEL is a name of ``MODELS`` or a bundled model."""
    return [
        *(f"verilog {model} --unit {unit}" for model in ("odd", "odd-c12") for unit in _UNITS),
        *(f"verilog odd --unit {core}" for core in _CORES),
        *(f"verilog tiny --unit {unit}" for unit in ("mac", "mlgru", "glu")),
        "verilog micro --unit core --rows 4 --cols 32",
        *(f"export {model} --form {form}" for model in ("odd", "odd-c12")
          for form in ("exact", "fast", "exact --one-token")),
        *(f"export {model}" for model in ("tiny", "tiny-c12", "micro")),
    ]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _of_folder(folder: Path) -> dict[str, str]:
    """The checksum of each file; versions of the tools, which a manifest states, aside."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            if path.suffix == ".json":
                data = json.dumps(
                    {**json.loads(data), "versions": None}, sort_keys=True).encode()
            if path.suffix == ".v" and (escaped := _ESCAPED.search(data)):
                raise RuntimeError(f"{path.name} has the name {escaped[0].decode()!r}")
            found[path.relative_to(folder).as_posix()] = _sha256(data)
    return found


def _of_command(line: str, folder: Path) -> dict[str, str]:
    from sterna.cli.main import main
    command, model, *options = shlex.split(line)
    if model in MODELS:
        model = str(MODELS[model].save(folder / "model.safetensors"))
    output = folder / "written"
    if command == "export":
        output.mkdir()
        options += ["--check", "0", "-o", str(output / "model.onnx")]
    else:
        options += ["-o", str(output)]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main([command, model, *options])
    if code:
        raise RuntimeError(f"sterna {line}: exit code {code}\n{said.getvalue()}")
    return _of_folder(output)


def _of_board(name: str, folder: Path) -> dict[str, str]:
    from sterna.hw.board.boards import board_named
    from sterna.hw.board.top import BoardParams, board_design, write_sources
    board = board_named(name)
    sizes = {**board.sizes, "rows": 2, "cols": 8, "quant_lanes": 2}
    write_sources(
        board_design(MODELS["line"], BoardParams(board), sizes), folder / "written")
    return _of_folder(folder / "written")


def _of_layer(kind: str, folder: Path) -> dict[str, str]:
    """Verilog and ONNX of plain arrays."""
    from sterna.export import export_layer, export_matrix
    from sterna.hw import emit_layer, emit_matrix
    rng = np.random.default_rng(9)

    def matrix(rows: int, columns: int) -> TernaryMatrix:
        return TernaryMatrix(rng.integers(-1, 2, (rows, columns)), 0.1, rng.normal(size=rows))

    output = folder / "written"
    if kind == "matrix":
        emit_matrix(matrix(7, 20), output, output=FixedPoint(8, 2), rows=4, axis=True)
        export_matrix(matrix(7, 20), output / "layer.onnx", output=FixedPoint(8, 2))
        return _of_folder(output)
    layer = {
        "layer": lambda: BitLinearLayer.of(matrix(7, 20), profile=C12),
        "mlgru": lambda: MlgruLayer.of(*(matrix(9, 20) for _ in "fcg"), matrix(7, 9), profile=C12),
        "glu": lambda: GluLayer.of(*(matrix(9, 20) for _ in range(2)), matrix(7, 9), profile=C12),
    }[kind]()
    emit_layer(layer, output, rows=4, axis=True)
    export_layer(layer, output / "layer.onnx")
    return _of_folder(output)


def _of_quantized(name: str, folder: Path) -> dict[str, str]:
    if name in MODELS:
        return {"model.safetensors": _sha256(MODELS[name].to_bytes())}
    from sterna.model.torch.stack.language_model import LanguageModel
    from sterna.model.torch.training.quantize import quantize
    profile = {"S16": S16, "C12": C12}[name]
    quantized = quantize(LanguageModel(ModelConfig.named("nano"), seed=3), profile)
    return {"model.safetensors": _sha256(quantized.to_bytes())}


def cases() -> list[str]:
    """The name of every case."""
    return [*command_lines(), "board ulx3s-85f", "board icebreaker",
            *(f"layer {kind}" for kind in ("matrix", "layer", "mlgru", "glu")),
            *(f"quantised {name}" for name in (*MODELS, "S16", "C12"))]


def checksums(case: str) -> dict[str, str]:
    """Write what a case names; return the SHA-256 of each file by its name."""
    kind, _, rest = case.partition(" ")
    makers = {"board": _of_board, "layer": _of_layer, "quantised": _of_quantized}
    with tempfile.TemporaryDirectory(prefix="sterna-") as folder:
        if kind in makers:
            return makers[kind](rest, Path(folder))
        return _of_command(case, Path(folder))


def differences(case: str, recorded: dict[str, dict[str, str]]) -> Iterator[str]:
    """Name each file of a case that is not as recorded."""
    now, before = checksums(case), recorded.get(case, {})
    for name in sorted({*now, *before}):
        if now.get(name) != before.get(name):
            what = ("is new" if name not in before else
                    "is missing" if name not in now else "differs")
            yield f"{case}: {name} {what}"


def main() -> int:
    """Compare, or with ``--write`` record; return 1 if a file differs."""
    parser = argparse.ArgumentParser(description="Checksums of all that Sterna writes.")
    parser.add_argument("cases", metavar="CASE", nargs="*")
    parser.add_argument("--write", action="store_true", help="record what is written now")
    arguments = parser.parse_args()
    chosen = arguments.cases or cases()
    if strangers := set(chosen).difference(cases()):
        parser.error(f"there is no case {strangers.pop()!r}; there are: {', '.join(cases())}")
    recorded = json.loads(RECORDED.read_text())
    if arguments.write:
        recorded.update({case: checksums(case) for case in chosen})
        recorded = {case: recorded[case] for case in cases() if case in recorded}
        RECORDED.write_text(json.dumps(recorded, indent=1) + "\n")
        return 0
    found = [line for case in chosen for line in differences(case, recorded)]
    print("\n".join(found) or f"{len(chosen)} cases, every file as recorded")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
