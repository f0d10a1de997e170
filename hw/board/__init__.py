"""Boards: the logic around the core."""
