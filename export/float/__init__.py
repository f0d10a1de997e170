"""Graphs in real numbers, close to the reference, and what they compute in float64."""
