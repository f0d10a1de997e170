"""Tokens: converting text to whole numbers and back, without torch."""
