"""Normalisation and quantisation of a vector to 8-bit activations and a scale."""
