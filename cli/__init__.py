"""The command line: a thin shell over the functions of the same names."""

import os

# The matrices of a token are small. Threads of the BLAS behind NumPy gain nothing on them,
# and on a busy machine they wait for each other: 20 times slower was measured. It has to be
# said before NumPy is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Threads of torch that wait for each other would spin: a training step beside another busy process
# took ten times as long. It has to be said before torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
