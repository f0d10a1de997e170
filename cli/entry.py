"""Entry point of the ``sterna`` process."""

from __future__ import annotations

import io
import signal
import sys
import time
from collections.abc import Sequence

from sterna.cli.terminal.interrupt import INTERRUPTED, note, was_interrupted, watch_for_ctrl_c
from sterna.model.processes import is_first_process

__all__ = ["entry_point"]

_SILENT = {"--quiet", "--json", "--help", "--version"}
_CHECKED = (0, 1)
"""Exit codes of a command that completed, whatever its result."""
_GROUPS = {"data", "tokenizer"}
"""Commands with subcommands."""


def entry_point() -> None:
    """Run the command line of this process and leave with its exit code."""
    started = time.monotonic()
    watch_for_ctrl_c()
    if isinstance(sys.stdout, io.TextIOWrapper):    # no errors for characters not in a code page
        sys.stdout.reconfigure(errors="replace")
    arguments = sys.argv[1:]
    try:
        from sterna.cli.main import main
        code = main(arguments)
        if code in _CHECKED:
            _say_seconds(arguments, time.monotonic() - started)
    except BaseException as error:
        # C modules turn a KeyboardInterrupt during their import into other errors.
        if not was_interrupted() and not isinstance(error, KeyboardInterrupt):
            raise
        code = INTERRUPTED
        note("sterna: interrupted")
    # Only the interpreter's shutdown is left, where nothing could catch it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def _say_seconds(arguments: Sequence[str], seconds: float) -> None:
    """Print the run time of a command to standard error, separate from results."""
    silent = not is_first_process() or _SILENT.intersection(arguments)
    if arguments and not arguments[0].startswith("-") and not silent:
        words = 2 if arguments[0] in _GROUPS else 1
        note(f"sterna {' '.join(arguments[:words])} took {seconds:.1f} s")
