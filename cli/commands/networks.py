"""``sterna run``: what a network gives for the frames of a sensor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sterna.cli.terminal.console import Stages, print_json, say, write
from sterna.cli.terminal.options import (
    MODEL_HELP,
    JsonOption,
    QuietOption,
    check_file,
    complete_model,
)
from sterna.model.files import write_atomically
from sterna.model.quantized import load_model
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.recordings import read_frames

__all__ = ["COMMANDS", "run"]


def run(
    model: Annotated[str, typer.Argument(
        metavar="MODEL", help=f"{MODEL_HELP} of a network, or its ONNX graph (.onnx).",
        autocompletion=complete_model)],
    frames: Annotated[Path, typer.Argument(
        metavar="FRAMES.csv", help="A frame a line, with a number for each channel; the first line "
                                   "may be a header.")],
    check: Annotated[bool, typer.Option(
        "--check", help="Compare the results of the integer reference with those of the ONNX "
                        "graph, bit for bit; exits with 1 if they differ.")] = False,
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", metavar="FILE.csv", help="Write the results here.")] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Run a network over the frames of a sensor, as one sequence.

    Prints a line of results for each frame, computed by the integer reference, or by an ONNX graph.

    Example: sterna run vowels FRAMES.csv --check
    """
    check_file(output, suffix=".csv")
    is_graph = model.endswith(".onnx")
    if check and is_graph:
        raise ValueError("--check goes with a quantised model, whose integers define what is right")
    mismatches = 0
    if is_graph:
        from sterna.export.graph.file import OnnxFile
        from sterna.export.runtime.session import Session
        with Stages(quiet) as stage:
            stage(f"load {model}", quick=True)
            info = OnnxFile.read(model).info
            if not info.is_network:
                raise ValueError(f"{model}: the graph of a language model, which takes no frames")
            x, clipped = info.integers(read_frames(frames, info.entry.shape[0]))
            results, _ = Session(model).run(x[None])
        frac = info.logit.frac
    else:
        loaded = load_model(model)
        if not loaded.is_network:
            raise ValueError(f"{model}: a language model, which takes no frames")
        x, clipped = loaded.integers(read_frames(frames, loaded.entry.shape[0]))
        results, _ = IntegerModel(loaded).run(x[None])
        frac = loaded.logit.frac
        if check:
            from sterna.export.forms.forms import build
            from sterna.export.runtime.check import check_exact
            with Stages(quiet) as stage:
                stage(f"compare {len(x)} frames with onnxruntime", quick=True)
                report = check_exact(loaded, build(loaded), x[None])
            mismatches = report.total.mismatches
            say(f"{report.total.values:,} values compared with onnxruntime, {mismatches} mismatches"
                + (f"; first: {report.first}" if report.first else ""), quiet and not mismatches)
    if clipped:
        say(f"{clipped} of {x.size} numbers are beyond the range of the network's input, and were "
            f"clipped")
    rows = results[0] / 2.0 ** frac
    if as_json:
        print_json({"frames": len(x), "clipped": clipped, "fraction_bits": frac,
                    "results": results[0].tolist(),
                    **({"mismatches": mismatches} if check else {})})
    else:
        lines = [",".join(f"y{index}" for index in range(rows.shape[1])),
                 *(",".join(f"{value:.12g}" for value in row) for row in rows)]
        text = "".join(f"{line}\n" for line in lines)
        if output is None:
            write(text)
        else:
            write_atomically(output, text.encode())
    return int(mismatches > 0)


COMMANDS = (run,)
