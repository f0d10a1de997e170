"""The float model and its training: the one folder that imports torch."""
