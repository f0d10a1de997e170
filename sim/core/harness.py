"""The clock loop of a core: where its C++ is, and what its functions are called with."""

from __future__ import annotations

import ctypes
from pathlib import Path

from sterna.sim.bench.cpp_build import load_library

__all__ = ["HARNESS", "load_core"]

HARNESS = Path(__file__).with_name("harness.cpp")


def load_core(path: Path) -> ctypes.CDLL:
    """Load a library and declare its functions, ``core_...`` at the end of ``harness.cpp``."""
    core, size, word = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64
    number, text = ctypes.c_uint, ctypes.c_char_p
    words = ctypes.POINTER(word)
    return load_library(path, "core", (
        ("new", core, (number, ctypes.c_int, ctypes.c_int, text, size)),
        ("delete", None, (core,)),
        ("error", text, (core,)),
        ("waves", None, (core, text)),
        ("reset", None, (core,)),
        ("begin", None, (core, word, word)),
        ("request", None, (core, number, word, ctypes.c_int, word, word, word, words, size)),
        ("hold", None, (core, ctypes.c_int, number, word, word)),
        ("weight_bytes", size, (core,)),
        ("weights", None, (core, number, text, size)),
        ("run", ctypes.c_int, (core, word)),
        ("cycle", word, (core,)),
        ("busy_cycles", word, (core,)),
        ("taken", size, (core, ctypes.c_int, number, core, core, core)),
        ("memory", core, (core, text, text, core, core)),
    ))
