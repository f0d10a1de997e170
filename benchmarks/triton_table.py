"""The Triton kernels' table: their errors, and every form compiled without a GPU.

    python benchmarks/triton_table.py [--sizes any|one]

Prints Markdown: what ``triton_errors.py`` measures in Triton's interpreter, and for every kernel
and form the architectures that it was compiled for, with registers and spilled bytes of a thread
and shared memory of a program. Without ``--sizes`` these are multiples of 16, as in real models.
Needs the extra ``triton``; takes about half a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import triton
from triton_aot import ARCHITECTURES, KERNELS, Compiled, Sizes, compile_form

Row = Sequence[str]


def measured_errors() -> Iterator[Row]:
    """Rows of errors, from a process of its own: the interpreter takes the compiler's place."""
    script = Path(__file__).with_name("triton_errors.py")
    said = subprocess.run([sys.executable, script, "--json"], check=True, text=True,
                          stdout=subprocess.PIPE, env={**os.environ, "TRITON_INTERPRET": "1"})
    for each in json.loads(said.stdout):
        codes = each["backward"] is None
        yield (each["what"], each["form"], each["shapes"],
               f"{each['forward']:.0f}" if codes else f"{each['forward']:.1e}",
               "as is" if codes else f"{each['backward']:.1e}")


def compiled_forms(sizes: Sizes) -> Iterator[Row]:
    """Rows of machine code, one for each form of each kernel."""
    for kernel in KERNELS:
        for form in kernel.forms:
            made = [compile_form(kernel, form, each, sizes) for each in ARCHITECTURES]

            def both(read: Callable[[Compiled], object], made: list[Compiled] = made) -> str:
                return ", ".join(str(read(each)) for each in made)

            yield (f"`{kernel.name.lstrip('_')}`", str(form), ", ".join(map(str, ARCHITECTURES)),
                   both(lambda each: each.registers), both(lambda each: each.spilled_bytes),
                   both(lambda each: each.shared_bytes))


def show(heads: Row, rows: Iterator[Row]) -> None:
    """Print a table row by row."""
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sizes", default="multiples of 16", choices=[each.value for each in Sizes])
    options = parser.parse_args()
    print(f"Triton {triton.__version__}, torch {torch.__version__}, interpreted on the CPU:\n")
    show(("kernel", "form", "shapes", "largest error forward", "backward"), measured_errors())
    print(f"\nCompiled for sizes: {options.sizes}.\n")
    show(("kernel", "form", "sm", "registers", "spilled bytes", "shared bytes"),
         compiled_forms(Sizes(options.sizes)))


if __name__ == "__main__":
    main()
