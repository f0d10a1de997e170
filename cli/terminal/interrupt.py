"""Ctrl-C at any moment: a flag, a KeyboardInterrupt that is not lost, and a message.

This module imports almost nothing, so that Ctrl-C also works while the rest of the command
line is imported, which takes a second.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

__all__ = ["INTERRUPTED", "note", "was_interrupted", "watch_for_ctrl_c"]

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

_came = False

_CLEARED = "npy_ctypes_check"
"""numpy calls this internal function from C and takes every exception from it for a no."""


def was_interrupted() -> bool:
    """Whether Ctrl-C was pressed; any later error counts as its consequence."""
    return _came


def watch_for_ctrl_c() -> None:
    """Raise KeyboardInterrupt for Ctrl-C, like Python, and set the flag.

    Other termination signals raise SystemExit.
    """
    # A shell starts background jobs with the signal ignored: keep that.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _leave)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _on_ctrl_c)
        sys.unraisablehook = _on_lost_error


def _leave(signum: int, frame: FrameType | None) -> None:
    """Exit through Python, not at once: running tools must be ended."""
    sys.exit(128 + signum)


def _on_ctrl_c(signum: int, frame: FrameType | None) -> None:
    global _came
    if not _came:
        _came = True
        # Amaranth warns about designs dropped half built, as happens now.
        import warnings
        warnings.simplefilter("ignore")
    if frame is not None and frame.f_code.co_name == _CLEARED:
        _press_soon()
    else:
        raise KeyboardInterrupt


def _on_lost_error(lost: UnraisableHookArgs) -> None:
    """Raise a KeyboardInterrupt again if it occurred where Python can only report it.

    Such places are finalisers and weak-reference callbacks, which are frequent during imports.
    """
    if isinstance(lost.exc_value, KeyboardInterrupt):
        _press_soon()
    else:
        sys.__unraisablehook__(lost)


def _press_soon() -> None:
    """Repeat Ctrl-C a moment later."""
    import _thread
    import threading
    threading.Timer(0.01, _thread.interrupt_main).start()


def note(text: str) -> None:
    """Print a line to standard error, unless it is closed.

    ``print`` would then use standard output, which is for results.
    """
    if sys.stderr is not None:
        print(text, file=sys.stderr)
