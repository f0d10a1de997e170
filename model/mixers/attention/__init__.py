"""Attention over all earlier tokens, or over those in a window."""

from sterna.model.mixers.attention.dot_product import Attention

__all__ = ["Attention"]
