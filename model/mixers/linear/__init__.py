"""Attention whose state does not grow, as its scores are products of features."""

from sterna.model.mixers.linear.elu import LinearAttention
from sterna.model.mixers.linear.performer import Performer
from sterna.model.mixers.linear.relu import ReluLinearAttention

__all__ = ["LinearAttention", "Performer", "ReluLinearAttention"]
