"""The command line: a thin shell over the functions of the same names."""

import os

# The matrices of a token are small: BLAS threads gain nothing, and on a busy machine they wait
# for each other, measured 20 times slower. Must be set before NumPy is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Threads of torch spin while they wait for each other, which beside another busy process made a
# training step up to five times as long. So let them sleep soon, but not at once, which costs a
# third on idle cores (benchmarks/busy_machine.py). Must be set before torch is first imported.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
