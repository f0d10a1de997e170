"""A float model of any mixers as ONNX graphs, by torch's exporter, compared with torch."""
