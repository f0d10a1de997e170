"""Simulation of the whole core: what is asked of it, what must come out, in which cycle."""
