"""Mixers combined: blocks, the language model; torch modules as integer layers."""
