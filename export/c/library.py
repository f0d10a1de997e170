"""A folder of the form ``c`` compiled for this machine, to compare it with the reference."""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from sterna.model.cpp_library import CompileError, NoCompilerError
from sterna.model.folder import MANIFEST
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.compare import Comparison, compare
from sterna.model.quantized.integer import IntegerModel

__all__ = ["CLibrary", "check_c"]


class CLibrary:
    """The functions of a model in C, with the compiler of the environment variable ``CC``, or cc.

    ``functions`` is the loaded library, ``weights`` the address of the weights.

    Raises NoCompilerError if there is no compiler, CompileError if it fails.
    """

    def __init__(self, folder: str | Path, options: str = "-O2") -> None:
        folder = Path(folder)
        facts = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        self.name: str = facts["name"]
        self._state_bytes: int = facts["state"]
        self._type = np.dtype(f"i{facts['value_bits'] // 8}")
        self._layers, self._results = facts["layers"], facts["results"]
        self._scratch = ctypes.create_string_buffer(facts["scratch"])
        blob = folder / f"{self.name}.bin"
        sources = [f"{self.name}.c", *([] if blob.exists() else [f"{self.name}_weights.c"])]
        with tempfile.TemporaryDirectory() as name:
            library = Path(name) / "model.so"
            _compile([*shlex.split(options), "-std=c99", "-shared", "-fPIC", "-o", str(library),
                      *(str(folder / "src" / each) for each in sources)])
            self.functions = ctypes.CDLL(str(library))
        self._blob = ctypes.create_string_buffer(blob.read_bytes()) if blob.exists() else None
        self.weights = ctypes.addressof(
            self._blob or ctypes.c_char.in_dll(self.functions, f"{self.name}_weights"))

    def run(self, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Run tokens ``[batch, length]`` or frames ``[batch, length, channels]`` from the start, a
        step of every sequence at a time; returns results ``[batch, length, width]`` and the last
        state ``[layers, batch, d]``, int32."""
        step = getattr(self.functions, f"{self.name}_step")
        step.restype = ctypes.POINTER(np.ctypeslib.as_ctypes_type(self._type))
        states = [ctypes.create_string_buffer(self._state_bytes) for _ in steps]
        results = np.empty((*steps.shape[:2], self._results), np.int32)
        for t in range(steps.shape[1]):
            for row, state in enumerate(states):
                own = np.asarray(steps[row, t], np.int32, order="C")
                entry = ctypes.c_int32(int(own)) if own.ndim == 0 else own.ctypes.data_as(
                    ctypes.POINTER(ctypes.c_int32))
                found = step(ctypes.c_void_p(self.weights), state, self._scratch, entry)
                results[row, t] = np.ctypeslib.as_array(found, (self._results,))
        last = [np.frombuffer(state.raw, self._type).reshape(self._layers, -1) for state in states]
        return results, np.stack(last, axis=1).astype(np.int32)

    def passes_its_test(self) -> bool:
        """Whether the self-test passes."""
        states = ctypes.create_string_buffer(2 * self._state_bytes)
        test = getattr(self.functions, f"{self.name}_test")
        return bool(test(ctypes.c_void_p(self.weights), states, self._scratch))


def check_c(model: QuantizedModel, folder: str | Path, steps: np.ndarray) -> Comparison:
    """Compile a folder of ``model`` and compare it with the integer reference.

    Compares the results of every step, and the last state, for tokens ``[batch, length]`` or frames
    ``[batch, length, channels]``; the sequences take turns step by step. Raises as
    :class:`CLibrary`.
    """
    steps = model.entry.array(steps, ["batch", "length"])
    expected, got = IntegerModel(model).run(steps), CLibrary(folder).run(steps)
    return sum((compare(record.name, state[None], own[None], first_token=steps.shape[1] - 1)
                for record, state, own in zip(model.states, expected[1], got[1], strict=True)),
               compare(model.entry.result, np.swapaxes(expected[0], 0, 1),
                       np.swapaxes(got[0], 0, 1)))


def _compile(arguments: list[str]) -> None:
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        raise NoCompilerError(
            f"there is no C compiler {compiler[0]}, with which the C is compared with the "
            f"reference: apt-get install gcc (or your system's package of that name), or --check 0")
    done = subprocess.run([*compiler, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line]
        raise CompileError(f"{compiler[0]} failed on the C of the model: "
                           f"{(lines or ['no message'])[0]}")
