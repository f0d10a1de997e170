"""The parts of ONNX graphs of all forms: nodes, inputs and outputs, weights, products.

Also the self-description of a file: metadata, and the names of inner tensors.
"""
