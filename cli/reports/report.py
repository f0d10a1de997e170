"""The demo's report: one HTML file that needs nothing else."""

from __future__ import annotations

import html
import json
from pathlib import Path

from sterna.cli.reports.hardware_page import stage_picture
from sterna.cli.reports.page import html_page, html_picture, html_table
from sterna.cli.reports.results import SEED, TEMPERATURE, DemoResult
from sterna.model.files import write_atomically
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.bundled import BUNDLED, bundled_metrics
from sterna.model.training.metrics import loss_picture

__all__ = ["write_report"]


def write_report(path: Path, model: QuantizedModel, result: DemoResult) -> Path:
    """Write ``report.html``: table, loss curve, cell counts, text, provenance, versions."""
    verdict = ('<p class="ok">Every value agreed.</p>' if result.passed
               else '<p class="bad">There are mismatches.</p>')
    stages = html_table(
        ("stage", "checked", "values compared", "mismatches", "seconds"),
        [(s.name, s.checked, "" if s.values is None else s.values, s.mismatches,
          f"{s.seconds:.1f}")
         for s in result.stages], numeric=(2, 3, 4))
    kinds = sorted({kind for counts in result.cells.values() for kind in counts.cells})
    cells = html_table(
        ("generic cell", *result.cells),
        [(kind, *(counts.cells.get(kind, 0) for counts in result.cells.values()))
         for kind in kinds]
        + [("register bits", *(c.register_bits for c in result.cells.values())),
           ("memory bits", *(c.memory_bits for c in result.cells.values()))],
        numeric=tuple(range(1, 1 + len(result.cells))))
    curve = _loss_curve(result.model)
    body = f"""<p>{model.config.ternary_weights:,} ternary weights, d {model.config.d},
{model.config.layers} layers, profile {model.profile.name}; quantised model
<code>{model.sha256[:16]}</code></p>
{verdict}
<h2>Stages</h2>{stages}
{curve}
{_cycles(result)}
<h2>Cells after generic synthesis</h2>
<p>Word-level cells of yosys, memories not mapped. The array multiplies nothing.</p>
{cells}
<h2>Text</h2>
<p>Written by the core in simulated Verilog, temperature {TEMPERATURE}, seed {SEED}, and by
the exact ONNX graph; the prompt is in bold.</p>
<pre><b>{html.escape(result.prompt)}</b>{html.escape(result.text)}</pre>
<h2>Where the model comes from</h2>
<pre>{html.escape(json.dumps(model.provenance, indent=2))}</pre>
<h2>Versions</h2>{html_table(("package", "version"), list(result.versions.items()))}"""
    return write_atomically(path, html_page(f"Sterna demo: {result.model}", body))


def _cycles(result: DemoResult) -> str:
    """Where the cycles of a token go."""
    if result.cycles is None:
        return ""
    picture = html_picture(
        stage_picture(result.cycles), "cycles of each stage, by what they are")
    return f"<h2>Cycles of a token</h2>{picture}"


def _loss_curve(name: str) -> str:
    """The training curve of a bundled model, as an embedded picture."""
    if name not in BUNDLED:
        return ""
    picture = html_picture(
        loss_picture(bundled_metrics(name), title=""), "bits per byte over the bytes trained on")
    return f"<h2>Training of the bundled model</h2>{picture}"
