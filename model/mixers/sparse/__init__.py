"""Attention over a part of the tokens, chosen by position or by content."""

from sterna.model.mixers.sparse.bigbird import BigBird
from sterna.model.mixers.sparse.linformer import Linformer
from sterna.model.mixers.sparse.local import Local
from sterna.model.mixers.sparse.reformer import Reformer
from sterna.model.mixers.sparse.sinkhorn import Sinkhorn
from sterna.model.mixers.sparse.strided import Strided

__all__ = ["BigBird", "Linformer", "Local", "Reformer", "Sinkhorn", "Strided"]
