"""The memory of the packed weights, which streams runs of words."""
