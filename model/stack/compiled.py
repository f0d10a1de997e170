"""Blocks that ``torch.compile`` compiles, as an option of a training run."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager

import torch

from sterna.model.stack.language_model import LanguageModel

__all__ = ["compile_blocks", "uncompiled"]

_COMPILERS = ("g++", "c++", "clang++")


def compile_blocks(model: LanguageModel, device: torch.device) -> None:
    """Have every block compiled when it is called first; names of weights stay.

    Raises
    ------
    ValueError
        If blocks are not called as a whole, or a CPU is to compute and there is no C++ compiler.
    """
    if model.config.residual != "plain":
        raise ValueError(f"compile needs blocks that are called as a whole, with residual plain, "
                         f"got {model.config.residual}")
    if device.type == "cpu" and not any(map(shutil.which, _COMPILERS)):
        raise ValueError(f"compile needs a C++ compiler ({', '.join(_COMPILERS)}), found none")
    for block in model.blocks():
        block.compile()


def uncompiled() -> AbstractContextManager[None]:
    """Within it blocks compute as if they were not compiled: for a few calls of other shapes, for
    each of which they would be compiled again."""
    context: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return context
