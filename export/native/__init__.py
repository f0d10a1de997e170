"""Compiled operators for onnxruntime: their C++, building it, using it in a graph."""
