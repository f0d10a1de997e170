"""Compiling the library of custom operators for onnxruntime, on demand.

The library is an option: without it the same file runs on the bodies of its functions.
docs/native-ops.md tells what it computes and how a kernel is chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sterna.model.cpp_library import CompileError, CppLibrary, NoCompilerError

__all__ = ["OPS_SOURCES", "MissingCompilerError", "OpsError", "build_ops"]

OPS_SOURCES = Path(__file__).parent / "cpp"
"""The C++ sources."""

_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique",
          "-ffp-contract=off")


class OpsError(ValueError):
    """The library of operators cannot be built or loaded; the message says why."""


class MissingCompilerError(OpsError):
    """g++ is not installed; the message says how to get it."""


def build_ops(
    folder: str | Path | None = None, *, sources: str | Path = OPS_SOURCES,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Compile the operators with g++, unless ``folder`` holds the very same library already.

    Parameters
    ----------
    folder
        Where to put the library, made if missing; None takes
        :func:`sterna.model.cache.cache_folder`.
    sources
        Folder of the C++ sources; another one in tests that plant a fault.
    progress
        Called as ``progress(done, total)`` with the number of compiled files.

    Returns
    -------
    Path
        ``sterna-ops-SOURCES-COMPILER.so``, with a hash of the sources and options and one of the
        compiler. Without a compiler a library of the same sources will do.

    Raises
    ------
    MissingCompilerError
        If g++ is not installed.
    OpsError
        If the sources do not compile.
    OSError
        If the folder cannot be written.
    """
    library = CppLibrary("sterna-ops", Path(sources), _FLAGS, "the operators")
    try:
        return library.build(None if folder is None else Path(folder), progress=progress)
    except NoCompilerError as error:
        raise MissingCompilerError(
            f"{error}; without the operators Sterna runs the same files, only slower") from error
    except CompileError as error:
        raise OpsError(str(error)) from error
