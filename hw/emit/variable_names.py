"""Names of signals that are the same on every Python.

Amaranth names a signal after the variable it is stored in: it reads the bytecode behind the call
that made the signal. From Python 3.13 on, a store may be fused with the instruction that follows
it (``STORE_FAST_LOAD_FAST``, ``STORE_FAST_STORE_FAST``). Amaranth 0.5 does not know these, and the
signal that is ``rested`` on Python 3.11 becomes ``$signal$27``: other bytes for the same design.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from opcode import opname
from types import FrameType
from typing import Any

from amaranth import tracer

__all__ = ["names_of_all_stores"]

_FUSED_STORES = ("STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST")


@contextmanager
def names_of_all_stores() -> Iterator[None]:
    """In the block, Amaranth finds the names of variables behind fused stores, too."""
    found_by_amaranth = tracer.get_var_name

    def get_var_name(depth: int = 2, *default: Any, **options: Any) -> Any:
        name = _behind_call(sys._getframe(depth))
        # This function stands between Amaranth's own and the one that called it.
        return found_by_amaranth(depth + 1, *default, **options) if name is None else name

    tracer.get_var_name = get_var_name
    try:
        yield
    finally:
        tracer.get_var_name = found_by_amaranth


def _behind_call(frame: FrameType) -> str | None:
    """The first variable of a fused store that directly follows the call a frame is in."""
    code = frame.f_code.co_code
    at = frame.f_lasti
    while opname[code[at]] == "CACHE":
        at -= 2
    if not opname[code[at]].startswith("CALL"):
        return None
    at += 2
    while opname[code[at]] == "CACHE":      # at the end of any code there is a return
        at += 2
    if opname[code[at]] not in _FUSED_STORES:
        return None
    # Two indices of four bits each; what is stored first is in the upper ones.
    # (The method is CPython's own, in no stub.)
    return frame.f_code._varname_from_oparg(code[at + 1] >> 4)  # type: ignore[attr-defined]
