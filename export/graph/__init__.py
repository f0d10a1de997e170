"""What the ONNX graphs of all forms are made of: nodes, inputs and outputs, weights, products.

And what a file says of itself: metadata, and the names of the tensors inside.
"""
