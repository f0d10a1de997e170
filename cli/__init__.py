"""The command line: a thin shell over the functions of the same names."""

import os

# The matrices of a token are small. Threads of the BLAS behind NumPy gain nothing on them,
# and on a busy machine they wait for each other: 20 times slower was measured. It has to be
# said before NumPy is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Threads of torch spin while they wait for each other, which beside another busy process made a
# training step up to five times as long. So they soon sleep; not at once, as on idle cores that
# would cost a third (benchmarks/busy_machine.py). It has to be said before torch is first imported.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
