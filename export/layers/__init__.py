"""A single layer as an ONNX graph, without a language model, and its test."""
