"""What a colleague with Python does once: the folder, and numbers to test it with."""

from pathlib import Path

import numpy as np

from sterna import emit_matrix

rng = np.random.default_rng(0)
weights = rng.integers(-1, 2, (16, 64))  # -1, 0 and 1
vectors = rng.integers(-128, 128, (20, 64), dtype=np.int8)

emit_matrix(weights, "matrix", rows=4, cols=16, lanes=8)
sums = vectors @ weights.T
words = [word[::-1].tobytes().hex() for word in vectors.reshape(-1, 8)]  # element 0 lowest
Path("acts.hex").write_text("\n".join(words) + "\n")
four = (sums.reshape(-1, 4) & 0x7fff) << np.arange(0, 60, 15)  # 15 bits each
np.savetxt("sums.hex", four.sum(axis=1), "%015x")
print(f"matrix/, acts.hex with {vectors.size} activations, sums.hex with {sums.size} sums")
