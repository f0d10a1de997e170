"""A token of a model in C beside its ONNX graph, without and with compiled operators.

    python benchmarks/c_speed.py tiny micro

One thread, in one run; the plain C, compiled with each of the options.
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
from collections.abc import Callable
from functools import partial

import numpy as np
from timing import describe_machine, measure

from sterna.cli.terminal.tables import Table
from sterna.export.c.folder import export_c
from sterna.export.c.library import CLibrary
from sterna.export.forms.forms import build
from sterna.export.runtime.session import Session
from sterna.model.quantized.file import load_language_model

OPTIONS = ("-Os", "-O2", "-O3 -march=native")


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=300)
    arguments = parser.parse_args()
    rows = []
    for name in arguments.models:
        model = load_language_model(name)
        sessions = {"exact": Session(build(model)), "operators": Session(build(model), ops=True)}
        state, token = sessions["exact"].start(1), np.array([65])
        calls: dict[str, Callable[[], object]] = {
            form: partial(own.step, token, state) for form, own in sessions.items()}
        with tempfile.TemporaryDirectory() as folder:
            facts = export_c(model, folder)
            for options in OPTIONS:
                calls[options] = _step(CLibrary(folder, options), facts["state"], facts["scratch"])
        taken = {form: min(samples) for form, samples in measure(
            calls, rounds=arguments.rounds).items()}
        rows += [(name, form, f"{1e6 * seconds:.0f}", f"{taken['exact'] / seconds:.2f}",
                  f"{taken['operators'] / seconds:.2f}") for form, seconds in taken.items()]
    machine = ", ".join(f"{key} {value}" for key, value in describe_machine().items())
    Table(machine, ("model", "", "µs a token", "x exact", "x operators"), rows).print()


def _step(library: CLibrary, state: int, scratch: int) -> Callable[[], object]:
    step = library.functions.model_step
    step.restype = ctypes.c_void_p
    memory = [ctypes.create_string_buffer(size) for size in (state, scratch)]
    return lambda: step(ctypes.c_void_p(library.weights), *memory, 65)


if __name__ == "__main__":
    main()
