"""The files of the test in an emitted folder: the code, its words, the Makefile."""

from __future__ import annotations

from pathlib import Path

from sterna.hw.emit.selftest.vectors import VECTORS_FILE, Vectors, vectors_text

__all__ = ["MADE_BY_TEST", "README_SECTION", "selftest_files"]

MADE_BY_TEST = "sim_build"
"""The folder that running the test makes, beside the files."""

README_SECTION = """\
## Test

`make` sends the words of `vectors.json` through the Verilog and compares every word that comes out,
in Verilator or, with `make SIM=icarus`, in Icarus. It needs cocotb 2 and the simulator, nothing
else; for Verilator also `g++`, `make`, `perl` and a path without spaces.
"""

_MAKEFILE = """\
# Runs the test of this folder. SIM is verilator or icarus, PYTHON one that has cocotb.
PYTHON ?= python3
SIM ?=

.PHONY: test clean
test:
	@$(PYTHON) -B {test} $(SIM)

clean:
	rm -rf {made}
"""
_IMPORT = "from sterna.hw.emit.selftest.ends import Pause, StreamDriver, StreamSink\n"
_CODE = '__all__ = ["Pause", "StreamDriver", "StreamSink"]\n'


def selftest_files(module: str, vectors: Vectors) -> dict[str, str]:
    """Return the files by name.

    Parameters
    ----------
    module
        Name of the Verilog module.
    vectors
        What is sent, and what is expected.
    """
    test = f"test_{module}.py"
    return {test: _test_text(), VECTORS_FILE: vectors_text(vectors),
            "Makefile": _MAKEFILE.format(test=test, made=MADE_BY_TEST)}


def _test_text() -> str:
    """The template with the classes of ``ends`` in place of their import: it stands alone."""
    here = Path(__file__).parent
    before, found, after = (here / "template.py").read_text(encoding="utf-8").partition(_IMPORT)
    _, code, ends = (here / "ends.py").read_text(encoding="utf-8").partition(_CODE)
    assert found
    assert code
    return f"{before.rstrip()}\n{ends.rstrip()}\n\n\n{after.lstrip()}"
