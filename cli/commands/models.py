"""``sterna evaluate`` and ``sterna info``: what a quantised model is and how good."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sterna.cli.terminal.console import out, print_json, print_table, progress_bar
from sterna.cli.terminal.texts import text_of
from sterna.model.quantized import QuantizedModel, load_model

__all__ = ["COMMANDS", "evaluate", "info"]


def evaluate(
    model: Annotated[str, typer.Argument(
        metavar="MODEL", help="Quantised file, tiny, a step graph ending in .onnx, or a "
                              "checkpoint ending in .pt (float).")],
    onnx: Annotated[str | None, typer.Option(
        "--onnx", metavar="FORM", help="Use the ONNX graph of this form in place of the "
                                       "integer reference.")] = None,
    text: Annotated[Path | None, typer.Option(
        help="UTF-8 text; default: the held-out text of the bundled models.")] = None,
    limit: Annotated[int | None, typer.Option(
        "--bytes", help="Use only the first so many bytes.")] = None,
    streams: Annotated[int, typer.Option(
        help="Contiguous parts that run side by side, each with its own state.")] = 16,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Measure held-out bits per byte, with the integer reference, a graph or the float model.

    Example: sterna evaluate tiny --bytes 4096
    """
    from sterna.model.quantized.evaluate import evaluate as run_evaluation
    from sterna.model.quantized.evaluate import evaluate_steps
    if limit is not None and limit < 2:
        raise ValueError(f"--bytes must be at least 2, got {limit}")
    if streams < 1:
        raise ValueError(f"--streams must be at least 1, got {streams}")
    if model.endswith(".pt"):
        if onnx is not None:
            raise ValueError("--onnx goes with a quantised model: quantise the checkpoint first")
        from sterna.model.training.checkpoint import load_checkpoint
        from sterna.model.training.quantize import evaluate_checkpoint
        data = text_of(text, load_checkpoint(model).config.vocab)
        name, result = "float", evaluate_checkpoint(model, data[:limit], streams=streams)
    elif onnx is not None or model.endswith(".onnx"):
        from sterna.cli.commands.graphs import open_model
        session = open_model(model, form=onnx, option="--onnx", prompts=False)
        data = text_of(text, session.info.config.vocab)
        frac = session.info.profile.logit.frac if session.info.exact else 0
        display, move = progress_bar("evaluating", quiet)
        with display:
            result = evaluate_steps(
                session, data[:limit], frac=frac, streams=streams, progress=move)
        name = f"{session.info.profile.name}, ONNX form {session.info.form}"
    else:
        loaded = load_model(model)
        data = text_of(text, loaded.config.vocab)
        display, move = progress_bar("evaluating", quiet)
        with display:
            result = run_evaluation(loaded, data[:limit], streams=streams, progress=move)
        name = loaded.profile.name
    if as_json:
        print_json({"bits_per_byte": result.bits_per_byte, "predictions": result.predictions})
    else:
        out.print(f"{result.bits_per_byte:.4f} bits per byte over {result.predictions:,} "
                  f"predictions ({name})")
    return 0


def info(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Quantised file, or tiny.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> int:
    """Show what is in a quantised model: shape, formats, matrices, provenance.

    Example: sterna info tiny
    """
    loaded = load_model(model)
    facts = _facts(loaded)
    if as_json:
        print_json(facts)
        return 0
    config, profile = loaded.config, loaded.profile
    out.print(f"{model}: d {config.d}, {config.layers} layers, dff {config.dff}, "
              f"vocabulary {config.vocab}; {config.ternary_weights:,} ternary weights; "
              f"{facts['bytes']:,} bytes")
    out.print(f"sha256 {facts['sha256']}")
    print_table(f"profile {profile.name}", ("signal", "bits", "fraction bits", "range"), [
        (name, fmt.bits, fmt.frac, f"-{fmt.limit:g} to {fmt.limit:g}")
        for name, fmt in (
            ("residual x", profile.x), ("pre-activation z", profile.z), ("state h", profile.h),
            ("MLGRU output o", profile.o), ("GLU product p", profile.p),
            ("logits", profile.logit))])
    print_table("matrices", ("name", "rows", "columns", "non-zero", "k", "shift"), [
        (name, m["rows"], m["columns"], f"{m['nonzero']:.0%}", m["k"], m["shift"])
        for name, m in facts["projections"].items()])
    for topic, entries in loaded.provenance.items():
        out.print(f"{topic}: {json.dumps(entries, indent=2)}")
    return 0


def _facts(model: QuantizedModel) -> dict[str, Any]:
    from dataclasses import asdict
    return {
        "sha256": model.sha256, "bytes": len(model.to_bytes()),
        "config": asdict(model.config), "ternary_weights": model.config.ternary_weights,
        "profile": asdict(model.profile),
        "projections": {
            name: {"rows": p.weight.shape[0], "columns": p.weight.shape[1],
                   "nonzero": float(np.mean(p.weight != 0)), "k": p.k, "shift": p.shift}
            for name, p in model.projections.items()},
        "provenance": model.provenance,
    }


COMMANDS = (evaluate, info)
