"""The report of a training run: one file, made from the run's folder."""

from __future__ import annotations

import html
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sterna.cli.reports.error_plot import error_html
from sterna.cli.reports.page import Outcome, Verdict, html_figure, html_heading, html_page
from sterna.cli.reports.vector import PALETTE, drawing, finish, svg_of
from sterna.cli.terminal.tables import Table
from sterna.export.float.reference import rounding_errors
from sterna.model.files import write_atomically
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.tokens.files import fitted
from sterna.model.torch.training.metrics import CodeShares, loss_limits, read_codes, read_metrics
from sterna.model.torch.training.run_folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sterna.model.torch.training.checkpoint import Checkpoint

__all__ = ["write_run_report"]

_ERROR_TOKENS = 256


def write_run_report(folder: RunFolder, path: Path | None = None) -> Path:
    """Write the report of the run in ``folder``, by default into it, and return its path.

    The page omits files missing from runs of older versions.
    """
    from sterna.model.torch.training.checkpoint import load_checkpoint
    from sterna.model.torch.training.record import read_samples

    checkpoint = load_checkpoint(folder.path)
    columns = read_metrics(folder.metrics)
    codes = read_codes(folder.codes) if folder.codes.exists() else {}
    body = [html_figure(_loss_plot(columns), "Bits per byte. The training loss is a running mean."),
            html_figure(_rate_plot(columns), "Learning rate of the matrices and biases.")]
    if any(value == value for value in columns["zeros"]):
        body += [html_heading("Ternary codes"), html_figure(
            _codes_plot(columns),
            "Share of all codes that one step changes (every tenth step is looked at), and share "
            "that is zero.")]
    body += [_layers(checkpoint, codes), _integers(checkpoint)]
    if folder.samples.exists() and (samples := read_samples(folder.samples)):
        body.append(_samples(samples))
    body.append(_settings(folder, checkpoint))
    page = html_page(f"Training run: {folder.path.name}", _verdict(checkpoint, columns),
                     "\n".join(each for each in body if each))
    return write_atomically(path or folder.report, page)


def _verdict(checkpoint: Checkpoint, columns: Mapping[str, Sequence[float]]) -> Verdict:
    held = checkpoint.heldout_bpb
    tokens = int(columns["tokens"][-1]) if columns["tokens"] else 0
    figures = [("not measured" if held is None else f"{held:.4f}", "held-out bits per byte"),
               (f"{checkpoint.step:,}", "steps"), (f"{tokens:,}", "tokens"),
               (f"{checkpoint.seconds:,.0f} s", "training time")]
    config = checkpoint.config
    return Verdict(
        Outcome.NOTE, "trained",
        f"{checkpoint.corpus_name}; d {config.d}, {config.layers} layers, {config.mixer} and "
        f"{config.channel}, for profile {checkpoint.profile.name}.", figures)


def _layers(checkpoint: Checkpoint, codes: Mapping[int, Mapping[str, CodeShares]]) -> str:
    """Every projection: its loss by ternary weights, and its last recorded codes."""
    from sterna.model.torch.training.record import ternary_errors

    errors = ternary_errors(checkpoint.model())
    if not errors:
        return ""
    last = codes[max(codes)] if codes else {}
    rows = []
    for name, error in errors.items():
        shares = last.get(name)
        rows.append((name, f"{error:.3f}", *(
            ("", "") if shares is None else (f"{shares.zeros:.1%}", f"{shares.flips:.3%}"))))
    at = f" at step {max(codes):,}" if codes else ""
    return html_heading(
        "Projections: the error is that of the ternary matrix against its latent weights, the "
        "root of the sum of squares of the difference over that of the weights."
    ) + Table(None, ("projection", "ternary error", f"zeros{at}", f"flips{at}"), rows).html()


def _integers(checkpoint: Checkpoint) -> str:
    """The loss by the profile's integers, per layer; empty for a model without them."""
    from sterna.model.torch.training.quantize import quantize

    if not checkpoint.config.has_integer_form:
        return ""
    model = quantize(checkpoint.model(), checkpoint.profile, tokenizer=checkpoint.tokenizer)
    tokenizer = fitted(checkpoint.tokenizer, model.config.vocab)
    tokens = tokenizer.encode(bundled_heldout(model.config.vocab))[:_ERROR_TOKENS]
    errors = rounding_errors(model, tokens.reshape(1, -1))
    return html_heading(f"Integers of profile {checkpoint.profile.name}") + error_html(
        errors, tokens.size)


def _samples(samples: Mapping[int, str]) -> str:
    return html_heading("Text while training") + "".join(
        f"<h3>Step {step:,}</h3><pre>{html.escape(text)}</pre>"
        for step, text in samples.items())


def _settings(folder: RunFolder, checkpoint: Checkpoint) -> str:
    """Command, recipe and versions."""
    described: dict[str, Any] = {}
    if folder.description.exists():
        try:
            described = json.loads(folder.description.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{folder.description}: not JSON ({error})") from error
    rows = [(name, value) for name, value in (
        *checkpoint.config.to_json().items(), *checkpoint.recipe.items(),
        ("seed", checkpoint.seed), ("text", checkpoint.corpus_name),
        ("tokenizer", checkpoint.tokenizer.kind), ("profile", checkpoint.profile.name),
        ("computed with", ", then ".join(checkpoint.computed_with) or "not known"))]
    for topic in ("versions", "machine"):
        rows += [*described.get(topic, {}).items()]
    command = described.get("command")
    said = f"<pre>{html.escape(shlex.join(command))}</pre>" if command else ""
    return html_heading("How it was made") + said + Table(
        None, ("setting", "value"), [(name, str(value)) for name, value in rows]).html()


_Columns = Mapping[str, Sequence[float]]


def _loss_plot(columns: _Columns) -> str:
    with drawing(9, 3.4) as figure:
        axes = figure.add_subplot()
        axes.plot(columns["step"], columns["train_bpb"], color=PALETTE[0], label="training")
        _points(axes, columns, "heldout_bpb", "held-out", PALETTE[3], "o-")
        axes.set_ylim(*loss_limits([*columns["train_bpb"], *columns["heldout_bpb"]]))
        finish(axes, "step", "bits per byte")
        figure.legend(loc="outside upper left", ncols=2)
        return svg_of(figure, "loss", "training and held-out bits per byte by step")


def _rate_plot(columns: _Columns) -> str:
    with drawing(9, 1.8) as figure:
        axes = figure.add_subplot()
        axes.plot(columns["step"], columns["lr"], color=PALETTE[2])
        axes.set_ylim(0, None)
        finish(axes, "step", "learning rate")
        return svg_of(figure, "rate", "learning rate by step")


def _codes_plot(columns: _Columns) -> str:
    with drawing(9, 3.2) as figure:
        upper, lower = figure.subplots(2, sharex=True)
        _points(upper, columns, "flips", "changed by a step", PALETTE[1], "-")
        upper.set_yscale("log")
        _points(lower, columns, "zeros", "zero", PALETTE[4], "-")
        finish(upper, "", "changed by a step")
        finish(lower, "step", "zero")
        return svg_of(figure, "codes", "shares of ternary codes that change and are zero, by step")


def _points(
    axes: Axes, columns: _Columns, name: str, label: str, colour: str, style: str,
) -> None:
    known = [(step, value) for step, value in zip(columns["step"], columns[name], strict=True)
             if value == value and (name != "flips" or value > 0)]
    axes.plot([step for step, _ in known], [value for _, value in known], style, color=colour,
              label=label, ms=4)
