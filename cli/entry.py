"""Where the process of ``sterna`` begins and ends."""

from __future__ import annotations

import signal
import sys

from sterna.cli.terminal.interrupt import INTERRUPTED, was_interrupted, watch_for_ctrl_c

__all__ = ["entry_point"]


def entry_point() -> None:
    """Run the command line of this process and leave with its exit code."""
    watch_for_ctrl_c()
    try:
        from sterna.cli.main import main
        code = main(sys.argv[1:])
    except BaseException as error:
        # Modules in C turn a KeyboardInterrupt while they are imported into errors of theirs.
        if not was_interrupted() and not isinstance(error, KeyboardInterrupt):
            raise
        code = INTERRUPTED
        print("sterna: interrupted", file=sys.stderr)
    # What is left is the end of the interpreter, where nothing could catch it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)
