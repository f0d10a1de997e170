"""Processes that work for another one, and end with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["deaf_to_ctrl_c", "end_with_parent"]


@contextmanager
def deaf_to_ctrl_c() -> Iterator[None]:
    """Ignore Ctrl-C in the block, and for ever in the processes that it starts."""
    if threading.current_thread() is not threading.main_thread():
        yield       # only the main thread may set it
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def end_with_parent() -> None:
    """For a worker, as its first act: ignore Ctrl-C, and end when the process that started it does.

    That process hears Ctrl-C, and must not be survived.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)    # if another thread started it
    parent = multiprocessing.parent_process()
    assert parent is not None

    def leave_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()
