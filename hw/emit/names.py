"""Names in emitted Verilog that no tool trips over."""

from __future__ import annotations

import re

__all__ = ["without_brackets"]


def without_brackets(text: str) -> str:
    r"""Rename ``\acts[3]`` to ``\acts.3`` wherever it is an escaped name.

    Amaranth gives every element of an array a name like that, for the waves. Yosys takes it
    for bit 3 of ``acts`` on the way through ABC9 and fails an assertion of its own, in large
    designs in particular (its issues 4349 and 4451).

    Parameters
    ----------
    text
        Verilog, as Yosys writes it: a space follows each escaped name.

    >>> print(without_brackets(r"assign \acts[3] = x[3];"))
    assign \acts.3 = x[3];
    """
    return re.sub(r"\\(\S+) ", _renamed, text)


def _renamed(name: re.Match[str]) -> str:
    return f"\\{name[1].replace('[', '.').replace(']', '')} "
