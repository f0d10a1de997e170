"""Training with torch: corpus to checkpoint, and the one step from floats to integers.

Each part of a run has a file: the recipe, the order of the text (:mod:`.windows`), the optimiser,
one step (:mod:`.step`), what changes from step to step (:mod:`.state`), the budget, the loop, the
checkpoint, the folder. :func:`sterna.model.training.train.train` puts them together. Beside them
stands :mod:`sterna.model.training.quantize`.
"""
