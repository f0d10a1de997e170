"""Recurrences: the state is a vector or a matrix, whatever the length of the text."""

from sterna.model.mixers.recurrent.gru import GRU
from sterna.model.mixers.recurrent.grumml import GRUMML, AttentionMML
from sterna.model.mixers.recurrent.hgrn2 import HGRN2
from sterna.model.mixers.recurrent.lru import LRU
from sterna.model.mixers.recurrent.mlgru import MLGRU

__all__ = ["GRU", "GRUMML", "HGRN2", "LRU", "MLGRU", "AttentionMML"]
