"""Worker processes that end with their parent, and processes started by a launcher."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

__all__ = ["deaf_to_ctrl_c", "end_with_parent", "is_first_process", "is_launched", "local_rank",
           "on_signal"]


@contextmanager
def on_signal(number: signal.Signals, handler: signal.Handlers) -> Iterator[None]:
    """Use ``handler`` for a signal in the block; without effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def deaf_to_ctrl_c() -> AbstractContextManager[None]:
    """Ignore Ctrl-C in the block, and permanently in the processes that it starts."""
    return on_signal(signal.SIGINT, signal.SIG_IGN)


def end_with_parent() -> None:
    """Make a worker leave Ctrl-C to its parent process and end with it; to be called first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)    # if another thread started it
    parent = multiprocessing.parent_process()
    assert parent is not None

    def leave_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()


_SET = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def is_launched() -> bool:
    """Whether a launcher started this process, alone or with others."""
    return all(name in os.environ for name in _SET)


def is_first_process() -> bool:
    """Whether this is the process that prints and writes: the first, or the only one."""
    return not is_launched() or os.environ["RANK"] == "0"


def local_rank() -> int | None:
    """The rank of this process on its machine; None if no launcher started it."""
    return int(os.environ.get("LOCAL_RANK", "0")) if is_launched() else None
