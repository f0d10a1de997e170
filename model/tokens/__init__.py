"""Tokens: how a text becomes whole numbers and comes back, without torch."""
