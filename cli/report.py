"""The demo's report: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path

from sterna.cli.results import DemoResult
from sterna.model.bundled import BUNDLED, bundled_metrics
from sterna.model.files import write_atomically
from sterna.model.metrics import loss_picture
from sterna.model.quantized import QuantizedModel

__all__ = ["write_report"]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #1c2330; background: #fff; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.2rem; }
table { border-collapse: collapse; width: 100%; font-size: .93rem; }
th, td { border-bottom: 1px solid #d9dee7; padding: .35rem .6rem; text-align: left;
         vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.ok { color: #17713b; } .bad { color: #b3261e; font-weight: 700; }
pre { background: #f4f6fa; padding: 1rem; white-space: pre-wrap; overflow-wrap: anywhere; }
img { max-width: 100%; } .scroll { overflow-x: auto; }
"""


def write_report(path: Path, model: QuantizedModel, result: DemoResult) -> Path:
    """Write ``report.html``: table, loss curve, cell counts, text, provenance, versions."""
    verdict = ('<p class="ok">Every value agreed.</p>' if result.passed
               else '<p class="bad">There are mismatches.</p>')
    stages = _table(
        ("stage", "checked", "values compared", "mismatches", "seconds"),
        [(s.name, s.checked, "" if s.values is None else s.values, s.mismatches,
          f"{s.seconds:.1f}")
         for s in result.stages], numeric=(2, 3, 4))
    kinds = sorted({kind for counts in result.cells.values() for kind in counts.cells})
    cells = _table(
        ("generic cell", *result.cells),
        [(kind, *(counts.cells.get(kind, 0) for counts in result.cells.values()))
         for kind in kinds]
        + [("register bits", *(c.register_bits for c in result.cells.values())),
           ("memory bits", *(c.memory_bits for c in result.cells.values()))],
        numeric=tuple(range(1, 1 + len(result.cells))))
    curve = _loss_curve(result.model)
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Sterna demo: {html.escape(result.model)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{_STYLE}</style></head><body>
<h1>Sterna demo: {html.escape(result.model)}</h1>
<p>{model.config.ternary_weights:,} ternary weights, d {model.config.d},
{model.config.layers} layers, profile {model.profile.name}; quantised model
<code>{model.sha256[:16]}</code></p>
{verdict}
<h2>Stages</h2><div class="scroll">{stages}</div>
{curve}
<h2>Cells after generic synthesis</h2>
<p>Word-level cells of yosys, memories not mapped. The array multiplies nothing.</p>
<div class="scroll">{cells}</div>
<h2>Text</h2>
<p>Written by the exact ONNX graph, temperature 0.7, seed 1; the prompt is in bold.</p>
<pre><b>{html.escape(result.prompt)}</b>{html.escape(result.text)}</pre>
<h2>Where the model comes from</h2>
<pre>{html.escape(json.dumps(model.provenance, indent=2))}</pre>
<h2>Versions</h2>{_table(("package", "version"), list(result.versions.items()))}
</body></html>
"""
    return write_atomically(path, page)


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], numeric: tuple[int, ...] = (),
) -> str:
    def cell(tag: str, index: int, value: object) -> str:
        kind = ' class="n"' if index in numeric else ""
        text = f"{value:,}" if isinstance(value, int) else str(value)
        return f"<{tag}{kind}>{html.escape(text)}</{tag}>"

    head = "".join(cell("th", i, name) for i, name in enumerate(columns))
    body = "".join(
        "<tr>" + "".join(cell("td", i, value) for i, value in enumerate(row)) + "</tr>"
        for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _loss_curve(name: str) -> str:
    """The training curve of a bundled model, as an embedded picture."""
    if name not in BUNDLED:
        return ""
    encoded = base64.b64encode(loss_picture(bundled_metrics(), title="")).decode()
    return (f'<h2>Training of the bundled model</h2>'
            f'<img alt="bits per byte over the bytes trained on" '
            f'src="data:image/png;base64,{encoded}">')
