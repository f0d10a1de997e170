"""Training with torch: corpus to checkpoint, and the one step from floats to integers.

:func:`sterna.train` puts the parts of a run together: the recipe, the order of
the text (:mod:`.windows`), the optimiser, what changes from step to step (:mod:`.state`), the
budget, the checkpoint, the folder (:mod:`.run_folder`), what is recorded (:mod:`.record`). Beside
them stands :mod:`sterna.model.training.quantize`.
"""
