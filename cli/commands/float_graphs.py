"""``sterna export CHECKPOINT.pt``: ONNX graphs of the float model of any mixers."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sterna.cli.terminal.console import Stages, out, print_json
from sterna.cli.terminal.options import check_folder
from sterna.model.checks import whole_number

__all__ = ["export_checkpoint"]

_MOST_TOKENS = 1 << 16
"""Of a comparison: full attention has the square of them in memory."""


def export_checkpoint(
    path: str, folder: Path, graphs: str, *, check: int, use_linear_attention: bool, quiet: bool,
    as_json: bool,
) -> int:
    """Write the graphs to a folder and compare them with torch; return the exit code."""
    whole_number("--check", check, 0, _MOST_TOKENS)
    if folder.suffix == ".onnx":
        raise ValueError(f"--output of a checkpoint is a folder, for step.onnx and sequence.onnx; "
                         f"got {folder}")
    check_folder(folder)
    results: list[dict[str, Any]] = []
    failed = False
    with Stages(quiet) as stage:
        stage(f"load {path}", quick=True)
        from sterna.model.onnx_float.check import LARGEST_DIFFERENCE, check_float
        from sterna.model.onnx_float.writer import GRAPHS, export_float
        from sterna.model.training.checkpoint import load_checkpoint
        model = load_checkpoint(path).model()
        stage(f"trace {model.config.mixer} in float32")
        files = export_float(
            model, folder, graphs=GRAPHS if graphs == "both" else (graphs,),
            use_linear_attention=use_linear_attention)
        for file in files:
            entry: dict[str, Any] = {"file": str(file), "bytes": file.stat().st_size}
            results.append(entry)
            if check:
                stage(f"compare {file} with torch")
                report = check_float(model, file, tokens=check)
                entry |= {**asdict(report), "allowed": LARGEST_DIFFERENCE}
                failed |= not report.close
    if as_json:
        for entry in results:
            if entry.get("difference") == math.inf:
                entry["difference"] = None
        print_json(results)
    else:
        for entry in results:
            out.print(f"{entry['file']}: {entry['bytes']:,} bytes{_compared(entry)}")
    return 1 if failed else 0


def _compared(entry: dict[str, Any]) -> str:
    if "tokens" not in entry:
        return ""
    if entry["difference"] == math.inf:
        return f"; not what torch computes: {entry['where']}"
    text = f"; {entry['difference']:.1e} from torch at most"
    if entry["where"]:      # nothing differs otherwise
        text += f", {entry['where']}"
    if entry["difference"] > entry["allowed"]:
        text += f", and {entry['allowed']:g} is allowed"
    if entry["codes"]:
        text += f"; {entry['flipped']} of {entry['codes']:,} 8-bit codes rounded the other way"
    if entry["flipped"]:
        text += f", from {entry['farthest']:.0e} beside a half"
    if entry["missing"]:
        text += f"; {entry['missing']} roundings of torch are not in the graph"
    return text
