"""Graphs that compute the integers of the reference.

The lean ones have few nodes; the traced one shows every inner tensor.
"""
