"""Training over many processes: the group, the layout of a model over it, tensors in shards.

Knows nothing of runs; :mod:`sterna.model.training` puts it to use.
"""
