"""``sterna run``: the results of a network for the frames of a sensor."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from sterna.cli.commands.board import (
    SIMULATED,
    BaudOption,
    BoardOption,
    ClockOption,
    board_params,
    design_for,
    serial_port,
)
from sterna.cli.terminal.console import Stages, print_json, progress_bar, say, write
from sterna.cli.terminal.options import (
    MODEL_HELP,
    JsonOption,
    QuietOption,
    check_file,
    complete_model,
    refuse,
)
from sterna.model.files import write_atomically
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.compare import Comparison, compare
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.recordings import read_frames

if TYPE_CHECKING:
    from sterna.hw.board.top import BoardParams

__all__ = ["COMMANDS", "run"]


def run(
    model: Annotated[str, typer.Argument(
        metavar="MODEL", help=f"{MODEL_HELP} of a network, or its ONNX graph (.onnx).",
        autocompletion=complete_model)],
    frames: Annotated[Path, typer.Argument(
        metavar="FRAMES.csv", help="A frame a line, with a number for each channel; the first line "
                                   "may be a header.")],
    check: Annotated[bool, typer.Option(
        "--check", help="Compare what the ONNX graph gives, or the board, with the integer "
                        "reference, bit for bit; exits with 1 if they differ.")] = False,
    port: Annotated[str | None, typer.Option(
        help="Let a board compute the results: its serial port, for example /dev/ttyUSB0; sim "
             "simulates the board.")] = None,
    board: BoardOption = "icebreaker",
    clock: ClockOption = None,
    baud: BaudOption = 0,
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", metavar="FILE.csv", help="Write the results here.")] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Run a network over the frames of a sensor, as one sequence.

    Prints a line of results for each frame, computed by the integer reference, by an ONNX graph, or
    by the network that build puts on a board.

    Example: sterna run vowels FRAMES.csv --check
    """
    check_file(output, suffix=".csv")
    is_graph = model.endswith(".onnx")
    if check and is_graph:
        raise ValueError("--check goes with a quantised model, whose integers define what is right")
    if port is None:
        refuse("goes with --port", clock=clock, baud=baud)
    elif is_graph:
        raise ValueError("--port goes with a quantised model")
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
        if port is not None:
            from sterna.hw.board.conversation import ConversationError
            expected = results
            try:
                results = _on_board(
                    loaded, x, port, board_params(board, clock, baud), quiet)[None]
            except ConversationError as error:
                say(f"sterna: {port}: {error}")
                return 1
            if check:
                mismatches = _tell(
                    compare("results", expected[0], results[0]), "the integer reference", quiet)
        elif check:
            from sterna.export.forms.forms import build
            from sterna.export.runtime.check import check_exact
            with Stages(quiet) as stage:
                stage(f"compare {len(x)} frames with onnxruntime", quick=True)
                report = check_exact(loaded, build(loaded), x[None])
            mismatches = _tell(report.total, "onnxruntime", quiet)
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


def _tell(found: Comparison, other: str, quiet: bool) -> int:
    """Print the result of a comparison; return the number of mismatches."""
    first = f"; first: {found.first}" if found.first else ""
    say(f"{found.values:,} values compared with {other}, {found.mismatches} mismatches{first}",
        quiet and not found.mismatches)
    return found.mismatches


def _on_board(
    model: QuantizedModel, frames: np.ndarray, port: str, params: BoardParams, quiet: bool,
) -> np.ndarray:
    """Results ``[length, width]`` from a board for one sequence of integer frames."""
    from sterna.hw.board.conversation import FrameConversation, SerialPort
    with ExitStack() as stack:
        if port == SIMULATED:
            from sterna.sim.bench.runner import work_folder
            from sterna.sim.board import BoardSimulation
            with Stages(quiet) as stage:
                design = design_for(model, params, "auto", stage, {}, sdram=False)
                stage("compile with Verilator and g++")
                line: SerialPort = BoardSimulation(design, stack.enter_context(work_folder(None)))
        else:
            line = stack.enter_context(serial_port(port, params.baud))
        conversation = FrameConversation(line)
        conversation.meet()
        width, rows = model.records[-1].width, []
        with progress_bar("running frames", quiet) as move:
            for index, frame in enumerate(frames.tolist(), 1):
                rows.append(conversation.run(frame, width))
                move(index, len(frames))
    return np.array(rows)


COMMANDS = (run,)
