"""A ternary matrix of your own as a folder of Verilog, and what it takes on an FPGA."""

import numpy as np

from sterna import emit_matrix, layer_cost

weights = np.random.default_rng(0).integers(-1, 2, (16, 64))  # -1, 0 and 1: yours go here

# An array of 4 rows and 16 columns: 16 products of 4 rows each cycle, 16 cycles a vector.
unit = emit_matrix(weights, "matrix", rows=4, cols=16)

print(*sorted(path.name for path in unit.folder.iterdir()))
print(layer_cost(unit, "ice40-hx8k"))
