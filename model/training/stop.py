"""Ctrl-C and SIGTERM while a run trains: the step is finished, and what there is is saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Stop", "stop_requested"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Which signal asked the run to stop; None as long as none did."""

    signal: int | None = None


@contextmanager
def stop_requested() -> Iterator[Stop]:
    """An object that Ctrl-C or SIGTERM marks, once, so that no step is left half done.

    A second signal is not held back: it does what it would do outside. (SIGTERM is what torchrun,
    Slurm and containers send before they kill.)
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread gets signals
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(signum: int, frame: FrameType | None) -> None:
        stop.signal = signum
        restore()

    for number in _SIGNALS:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        restore()
