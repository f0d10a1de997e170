"""Simulation of the whole core: its requests, and the expected outputs and cycles."""
