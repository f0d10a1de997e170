"""Cycle counts of a core and the contents of its memories."""
