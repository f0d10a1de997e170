"""Attention over a part of the tokens, chosen by position or by content."""
