"""A ternary layer of your own as an ONNX file: the same integers in plain onnxruntime."""

import numpy as np
import onnxruntime

from sterna import BitLinearLayer, TernaryMatrix, export_layer

rng = np.random.default_rng(0)
weights = TernaryMatrix(rng.integers(-1, 2, (64, 300)), scale=0.05, bias=rng.normal(size=64))
layer = BitLinearLayer.of(weights)  # norm, 8-bit activations, ternary product, scale and bias
path = export_layer(layer, "layer.onnx")

session = onnxruntime.InferenceSession(path)
x = rng.integers(-32768, 32768, (1000, 300))  # of any scale: the norm takes it out
(y,) = session.run(None, {"x": x.astype(np.int32)})
expected, _ = layer.step(x)  # the integer reference
print(f"{path}: {y.size} values compared, {np.count_nonzero(y != expected)} mismatches")
assert (y == expected).all()
