"""Training with torch: corpus to checkpoint, and the one step from floats to integers.

Here are the loop, its recipe, what a run writes, and :mod:`sterna.model.training.quantize`.
"""
