"""What every ONNX graph is made of: nodes, lookups, products, bounds, metadata.

Nothing here knows which form a graph has.
"""
