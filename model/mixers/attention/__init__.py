"""Attention over all earlier tokens, or over those in a window."""

from sterna.model.mixers.attention.dot_product import Attention
from sterna.model.mixers.attention.grouped_query import GroupedQueryAttention, MultiQueryAttention
from sterna.model.mixers.attention.relu import ReluAttention
from sterna.model.mixers.attention.ring import RingAttention
from sterna.model.mixers.attention.sinks import Sinks
from sterna.model.mixers.attention.window import Window

__all__ = ["Attention", "GroupedQueryAttention", "MultiQueryAttention", "ReluAttention",
           "RingAttention", "Sinks", "Window"]
