"""Results of the demo, and its report: a single self-contained HTML file."""

from __future__ import annotations

import html
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from sterna.cli.reports.vector import drawing, svg_of
from sterna.cli.terminal.tables import Table
from sterna.cli.terminal.texts import PROMPT
from sterna.hw.flow.report import CellCounts
from sterna.model.files import write_atomically
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.bundled import BUNDLED, BUNDLED_NETWORK, bundled_metrics
from sterna.model.torch.training.metrics import draw_loss

if TYPE_CHECKING:
    from sterna.export.float.reference import TensorError
    from sterna.hw.core.cycles.report import CycleReport

__all__ = ["SEED", "TEMPERATURE", "DemoResult", "Stage", "write_report"]

TEMPERATURE, SEED = 0.7, 1
"""Sampling of the text."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A line of the demo's table; ``values`` is None if nothing is compared."""

    name: str
    checked: str
    values: int | None
    mismatches: int
    seconds: float
    first: str | None = None


@dataclass(slots=True)
class DemoResult:
    """Results and output of the demo."""

    model: str
    quick: bool = False
    stages: list[Stage] = field(default_factory=list)
    bits_per_byte: float | None = None  # of a language model
    accuracy: float | None = None  # of a network
    cells: dict[str, CellCounts] = field(default_factory=dict)
    prompt: str = PROMPT
    text: str = ""
    cycles: CycleReport | None = None
    errors: list[TensorError] = field(default_factory=list)
    error_tokens: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    report: Path = Path()
    _begun: float = field(default_factory=time.perf_counter)

    @property
    def passed(self) -> bool:
        """Whether no stage found a mismatch."""
        return all(stage.mismatches == 0 for stage in self.stages)

    def add(
        self, name: str, checked: str, values: int | None, mismatches: int, first: object = None,
    ) -> None:
        """Add a stage that took the time since the previous one."""
        now = time.perf_counter()
        self.stages.append(Stage(name, checked, values, mismatches, now - self._begun,
                                 None if first is None else str(first)))
        self._begun = now

    def table(self, title: str | None) -> Table:
        """The stages, one per line."""
        return Table(title, ("stage", "checked", "values compared", "mismatches", "seconds"), [
            (stage.name, stage.checked, "" if stage.values is None else stage.values,
             stage.mismatches, f"{stage.seconds:.1f}") for stage in self.stages])

    def as_dict(self) -> dict[str, Any]:
        """The result as plain data, for JSON."""
        return {
            "model": self.model, "quick": self.quick, "passed": self.passed,
            "stages": [asdict(stage) for stage in self.stages],
            "bits_per_byte": self.bits_per_byte, "accuracy": self.accuracy,
            "cells": {unit: asdict(counts) for unit, counts in self.cells.items()},
            "cycles": None if self.cycles is None else self.cycles.as_dict(),
            "rounding_errors": [asdict(error) for error in self.errors],
            "prompt": self.prompt, "text": self.text, "versions": self.versions,
            "report": str(self.report),
        }


def write_report(path: Path, model: QuantizedModel, result: DemoResult) -> Path:
    """Write ``report.html``: verdict, table, drawings, cell counts, text, provenance, versions."""
    writers = ("the exact ONNX graph and by the integer reference; nothing was simulated"
               if result.quick else "the core in simulated Verilog and by the exact ONNX graph")
    weights = sum(each.weight.size for each in model.projections.values())
    text = f"""<h2>Text</h2>
<p>Written by {writers}, temperature {TEMPERATURE}, seed {SEED}; the prompt is in bold.</p>
<pre><b>{html.escape(result.prompt)}</b>{html.escape(result.text)}</pre>"""
    body = f"""<p>{weights:,} ternary weights, d {model.states[0].width},
{len(model.states)} layers, profile {model.profile.name}; quantised model
<code>{model.sha256[:16]}</code></p>
<h2>Stages</h2>{result.table(None).html()}
{"" if model.is_network else text}
{"" if result.cycles is None else token_html(result.cycles)}
{_errors(result)}
{_loss_curve(result.model)}
{_cells(result)}
<h2>Where the model comes from</h2>
<pre>{html.escape(json.dumps(model.provenance, indent=2))}</pre>
{html_table(Table("versions", ("package", "version"), list(result.versions.items())))}"""
    return write_atomically(path, html_page(f"Sterna demo: {result.model}", _verdict(result), body))


def _verdict(result: DemoResult) -> Verdict:
    """The numbers of compared and of differing values."""
    values = sum(stage.values or 0 for stage in result.stages)
    mismatches = sum(stage.mismatches for stage in result.stages)
    figures = ((f"{values:,}", "values compared"), (f"{mismatches:,}", "mismatches"),
               (f"{result.bits_per_byte:.4f}", "bits per byte on held-out text")
               if result.accuracy is None else
               (f"{result.accuracy:.1%}", "of held-out recordings right"))
    if result.passed:
        compared = ("Integer reference and ONNX graphs" if result.quick else
                    "Integer reference, ONNX graphs and simulated Verilog")
        return Verdict(
            Outcome.PASS, "PASS",
            f"{compared} gave the same integers in every value compared.", figures)
    wrong = ", ".join(stage.name for stage in result.stages if stage.mismatches)
    return Verdict(Outcome.FAIL, "FAIL", f"There are mismatches: {wrong}.", figures)


def _cells(result: DemoResult) -> str:
    """The cells of the array; empty if not counted."""
    if not result.cells:
        return ""
    kinds = sorted({kind for counts in result.cells.values() for kind in counts.cells})
    table = Table(None, ("generic cell", *result.cells), [
        *((kind, *(counts.cells.get(kind, 0) for counts in result.cells.values()))
          for kind in kinds),
        ("register bits", *(counts.register_bits for counts in result.cells.values())),
        ("memory bits", *(counts.memory_bits for counts in result.cells.values()))])
    return f"""<h2>Cells after generic synthesis</h2>
<p>Word-level cells of yosys, memories not mapped. The array multiplies nothing.</p>
{table.html()}"""


def _errors(result: DemoResult) -> str:
    """Rounding errors, layer by layer."""
    if not result.errors:
        return ""
    return (html_heading("what rounding to integers costs")
            + error_html(result.errors, result.error_tokens))


def _loss_curve(name: str) -> str:
    """The training curve of a bundled model."""
    if name not in BUNDLED or name == BUNDLED_NETWORK:
        return ""
    with drawing(9, 3.6) as figure:
        draw_loss(figure, bundled_metrics(name))
        curve = svg_of(figure, "loss", "bits per byte over the bytes trained on")
    return html_heading("training of the bundled model") + html_figure(
        curve, "A triangle at the upper edge is a value beyond the scale, which is given.")
