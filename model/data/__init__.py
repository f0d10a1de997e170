"""The bundled models, their held-out text and training curves."""
