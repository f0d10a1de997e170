"""A float model of any mixers as ONNX graphs, by torch's own exporter, compared with torch."""
