"""Run graphs in onnxruntime: sessions, states, text, comparison with the reference."""
