"""Compiled operators for onnxruntime: their C++, its build, and its use in a graph."""
