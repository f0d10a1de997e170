"""Training with torch: corpus to checkpoint, and the one step from floats to integers.

:func:`sterna.train` combines the parts of a run: the recipe, the text order (:mod:`.windows`), the
optimiser, the state (:mod:`.state`), the budget, the checkpoint, the folder (:mod:`.run_folder`)
and the record (:mod:`.record`). :mod:`sterna.model.torch.training.quantize` is separate.
"""
