"""The demo's report: one HTML file that needs nothing else."""

from __future__ import annotations

import html
import json
from pathlib import Path

from sterna.cli.reports.error_plot import error_html
from sterna.cli.reports.hardware_page import token_html
from sterna.cli.reports.page import (
    Outcome,
    Verdict,
    html_figure,
    html_heading,
    html_page,
    html_table,
)
from sterna.cli.reports.results import SEED, TEMPERATURE, DemoResult
from sterna.cli.reports.vector import drawing, svg_of
from sterna.model.files import write_atomically
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.bundled import BUNDLED, bundled_metrics
from sterna.model.training.metrics import draw_loss

__all__ = ["write_report"]


def write_report(path: Path, model: QuantizedModel, result: DemoResult) -> Path:
    """Write ``report.html``: verdict, table, drawings, cell counts, text, provenance, versions."""
    stages = html_table(
        ("stage", "checked", "values compared", "mismatches", "seconds"),
        [(s.name, s.checked, "" if s.values is None else s.values, s.mismatches,
          f"{s.seconds:.1f}")
         for s in result.stages], numeric=(2, 3, 4))
    curve = _loss_curve(result.model)
    writers = ("the exact ONNX graph and by the integer reference; nothing was simulated"
               if result.quick else "the core in simulated Verilog and by the exact ONNX graph")
    body = f"""<p>{model.config.ternary_weights:,} ternary weights, d {model.config.d},
{model.config.layers} layers, profile {model.profile.name}; quantised model
<code>{model.sha256[:16]}</code></p>
<h2>Stages</h2>{stages}
<h2>Text</h2>
<p>Written by {writers}, temperature {TEMPERATURE}, seed {SEED}; the prompt is in bold.</p>
<pre><b>{html.escape(result.prompt)}</b>{html.escape(result.text)}</pre>
{_cycles(result)}
{_errors(result)}
{curve}
{_cells(result)}
<h2>Where the model comes from</h2>
<pre>{html.escape(json.dumps(model.provenance, indent=2))}</pre>
<h2>Versions</h2>{html_table(("package", "version"), list(result.versions.items()))}"""
    return write_atomically(path, html_page(
        f"Sterna demo: {result.model}", _verdict(result), body))


def _verdict(result: DemoResult) -> Verdict:
    """How many values were compared, and how many differ."""
    values = sum(stage.values or 0 for stage in result.stages)
    mismatches = sum(stage.mismatches for stage in result.stages)
    figures = ((f"{values:,}", "values compared"), (f"{mismatches:,}", "mismatches"),
               (f"{result.bits_per_byte:.4f}", "bits per byte on held-out text"))
    if result.passed:
        compared = ("Integer reference and ONNX graphs" if result.quick else
                    "Integer reference, ONNX graphs and simulated Verilog")
        return Verdict(
            Outcome.PASS, "PASS",
            f"{compared} gave the same integers in every value compared.", figures)
    wrong = ", ".join(stage.name for stage in result.stages if stage.mismatches)
    return Verdict(Outcome.FAIL, "FAIL", f"There are mismatches: {wrong}.", figures)


def _cells(result: DemoResult) -> str:
    """What the array is made of; nothing if it was not counted."""
    if not result.cells:
        return ""
    kinds = sorted({kind for counts in result.cells.values() for kind in counts.cells})
    table = html_table(
        ("generic cell", *result.cells),
        [(kind, *(counts.cells.get(kind, 0) for counts in result.cells.values()))
         for kind in kinds]
        + [("register bits", *(c.register_bits for c in result.cells.values())),
           ("memory bits", *(c.memory_bits for c in result.cells.values()))],
        numeric=tuple(range(1, 1 + len(result.cells))))
    return f"""<h2>Cells after generic synthesis</h2>
<p>Word-level cells of yosys, memories not mapped. The array multiplies nothing.</p>
{table}"""


def _cycles(result: DemoResult) -> str:
    """Which unit works when, and where the cycles of a token go."""
    return "" if result.cycles is None else token_html(result.cycles)


def _errors(result: DemoResult) -> str:
    """What rounding costs, layer by layer."""
    if not result.errors:
        return ""
    return (html_heading("what rounding to integers costs")
            + error_html(result.errors, result.error_tokens))


def _loss_curve(name: str) -> str:
    """The training curve of a bundled model."""
    if name not in BUNDLED:
        return ""
    with drawing(9, 3.6) as figure:
        draw_loss(figure, bundled_metrics(name))
        curve = svg_of(figure, "loss", "bits per byte over the bytes trained on")
    return html_heading("training of the bundled model") + html_figure(
        curve, "A triangle at the upper edge is a value beyond the scale, which is given.")
