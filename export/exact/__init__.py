"""Graphs that compute the integers of the reference.

The traced graph shows every inner tensor; the lookup graphs (forms exact, exact-2bit and web)
read from tables and have few nodes. Beside them: the tables, and the proof that no bit is lost.
"""
