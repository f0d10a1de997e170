"""One layer as an ONNX graph, without a language model around it: its making and its test."""
