"""Mixers put together: blocks, the language model; torch modules as layers of integers."""
