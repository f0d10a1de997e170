"""Where the process of ``sterna`` begins and ends: Ctrl-C is one line, at any moment.

This module imports next to nothing, so that Ctrl-C is also understood while the rest is
imported, which takes a second.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

__all__ = ["INTERRUPTED", "entry_point", "was_interrupted"]

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

_came = False


def was_interrupted() -> bool:
    """Whether Ctrl-C was pressed: any error after it is taken for its consequence."""
    return _came


def entry_point() -> None:
    """Run the command line of this process and leave with its exit code."""
    # A shell starts jobs in the background with the signal ignored: leave it so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _on_ctrl_c)
        sys.unraisablehook = _on_lost_error
    try:
        from sterna.cli.main import main
        code = main(sys.argv[1:])
    except BaseException as error:
        # Modules in C turn a KeyboardInterrupt while they are imported into errors of theirs.
        if not _came and not isinstance(error, KeyboardInterrupt):
            raise
        code = INTERRUPTED
        print("sterna: interrupted", file=sys.stderr)
    # What is left is the end of the interpreter, where nothing could catch it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def _on_ctrl_c(signum: int, frame: FrameType | None) -> None:
    global _came
    if not _came:
        _came = True
        # Amaranth warns of designs that are dropped half built, which is what happens now.
        import warnings
        warnings.simplefilter("ignore")
    raise KeyboardInterrupt


def _on_lost_error(lost: UnraisableHookArgs) -> None:
    """Raise a KeyboardInterrupt again that came where Python can only report it.

    Such places are finalisers and callbacks of weak references, of which importing has many.
    """
    if not isinstance(lost.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    import _thread
    import threading
    threading.Timer(0.01, _thread.interrupt_main).start()
