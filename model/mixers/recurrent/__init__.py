"""Recurrences: the state is a vector or a matrix, whatever the length of the text."""

from sterna.model.mixers.recurrent.mlgru import MLGRU

__all__ = ["MLGRU"]
