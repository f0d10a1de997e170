"""Limits of a core, its chosen sizes, and quantities derived from both."""
