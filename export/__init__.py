"""Quantised ONNX graphs that compute the integers of the reference."""
