"""Verilog models of the vendor cells that Sterna instantiates, for simulators."""

from __future__ import annotations

import re
from importlib.resources import files

__all__ = ["cell_models"]

_FILES = ("ecp5.v", "xc7.v")


def cell_models(verilog: str) -> dict[str, str]:
    """Return the model files that a simulation of ``verilog`` needs, text by name.

    >>> sorted(cell_models("  CCU2C #("))
    ['ecp5.v']
    >>> cell_models("module CCU2C_user;")
    {}
    """
    used = set(re.findall(r"^\s*(\w+) (?:#\(|\\?\w+ ?\()", verilog, re.MULTILINE))
    texts = {name: files(__name__).joinpath(name).read_text(encoding="utf-8") for name in _FILES}
    return {name: text for name, text in texts.items()
            if used & set(re.findall(r"^module (\w+)", text, re.MULTILINE))}
