"""Attention whose state does not grow, as its scores are products of features."""
