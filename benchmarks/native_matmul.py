"""Time the compiled ternary matrix-vector product alone, for every kernel.

    python benchmarks/native_matmul.py
    python benchmarks/native_matmul.py --peer libggml-cpu.so

Warm: the product was computed just before. Cold: 256 MiB were read in between. With ``--peer``,
a shared library that has ggml's ``ggml_vec_dot_tq2_0_q8_K`` and its two quantisers, llama.cpp's
TQ2_0 is timed beside it on the same weights, without the quantisation of its activations. All
of them take turns; medians; one thread. Compare ratios, not times: machines are shared.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sterna.export.native.ops import OpsError, TernaryMatrix, build_ops, kernel_name

SHAPES = ((1024, 1024), (1024, 2816), (2816, 1024), (2048, 5632), (5632, 2048))
KERNELS = ("avx512vnni", "avx2", "neon-dot", "neon", "portable")
EVICTION = np.ones(1 << 28, dtype=np.uint8)
# The clock and the loop over the peer's rows are in C: with cold caches the interpreter alone
# takes longer than a product.
CLOCK = """
#include <stddef.h>
#include <stdint.h>
#include <time.h>
typedef void (*dot)(int, float *, size_t, const void *, size_t, const void *, size_t, int);
typedef void (*matmul)(const void *, const int8_t *, int64_t, int32_t *);
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
double peer(dot f, int n, int count, const char *w, size_t bytes, const void *y, float *out) {
    double start = now();
    for (int i = 0; i < count; ++i) f(n, out + i, 0, w + i * bytes, 0, y, 0, 1);
    return now() - start;
}
double ours(matmul f, const void *matrix, const int8_t *acts, int32_t *acc) {
    double start = now();
    f(matrix, acts, 1, acc);
    return now() - start;
}
"""


class Peer:
    """TQ2_0 of ggml on the same weights: 66 bytes for each 256 of them."""

    def __init__(self, library: ctypes.CDLL, clock: ctypes.CDLL, weight: np.ndarray) -> None:
        count, columns = weight.shape
        self._bytes = columns // 256 * 66
        self._weight = np.zeros(count * self._bytes, dtype=np.uint8)
        values = weight.astype(np.float32)
        quantize = library.quantize_row_tq2_0_ref
        for row in range(count):
            quantize(ctypes.c_void_p(values[row].ctypes.data),
                     ctypes.c_void_p(self._weight.ctypes.data + row * self._bytes),
                     ctypes.c_int64(columns))
        self._acts = np.zeros(columns // 256 * 292, dtype=np.uint8)
        self.out = np.zeros(count, dtype=np.float32)
        self._quantize = library.quantize_row_q8_K
        self._columns = columns
        self._call = clock.peer
        self._arguments = (
            ctypes.cast(library.ggml_vec_dot_tq2_0_q8_K, ctypes.c_void_p), columns, count,
            ctypes.c_void_p(self._weight.ctypes.data), ctypes.c_size_t(self._bytes),
            ctypes.c_void_p(self._acts.ctypes.data), ctypes.c_void_p(self.out.ctypes.data))

    def quantize(self, acts: np.ndarray) -> None:
        """Take activations; one of 127 in each 256 makes its scale 1, and the result exact."""
        values = acts.astype(np.float32)
        self._quantize(ctypes.c_void_p(values.ctypes.data),
                       ctypes.c_void_p(self._acts.ctypes.data), ctypes.c_int64(self._columns))

    def run(self) -> float:
        """Seconds of one product."""
        return float(self._call(*self._arguments))


def load_clock() -> ctypes.CDLL:
    """Compile the clock."""
    with tempfile.TemporaryDirectory(prefix="sterna-clock-") as name:
        source, library = Path(name) / "clock.c", Path(name) / "clock.so"
        source.write_text(CLOCK)
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", str(source), "-o", str(library)],
                       check=True)
        clock = ctypes.CDLL(str(library))
    clock.peer.restype = clock.ours.restype = ctypes.c_double
    return clock


def seconds(run: Callable[[], float], cold: bool) -> float:
    """Time of one call, after one more of it or after the caches were emptied."""
    if cold:
        EVICTION[::64].sum()
    else:
        run()
    return run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peer", type=Path, help="shared library with ggml's TQ2_0")
    options = parser.parse_args()
    library = build_ops()
    kernels = []
    for name in KERNELS:
        try:
            kernels.append(kernel_name(library, name))
        except OpsError:
            continue
    peer = ctypes.CDLL(str(options.peer)) if options.peer else None
    clock = load_clock()
    rng = np.random.default_rng(0)
    print("columns x rows   cache  " + "".join(f"{name:>18}" for name in [
        *(["TQ2_0"] if peer else []), *kernels]) + "   (us, times faster than the first)")
    for columns, rows in SHAPES:
        weight = rng.integers(-1, 2, (rows, columns), dtype=np.int8)
        acts = rng.integers(-127, 128, (1, columns), dtype=np.int8)
        acts[0, ::256] = 127
        expected = acts[0].astype(np.int64) @ weight.T.astype(np.int64)
        kept = []   # what the calls point to
        runs: dict[str, Callable[[], float]] = {}
        if peer:
            other = Peer(peer, clock, weight)
            other.quantize(acts[0])
            other.run()
            assert np.array_equal(other.out, expected)
            runs["TQ2_0"] = other.run
        for name in kernels:
            matrix = TernaryMatrix(library, weight, name)
            filled, acc = matrix.buffers(1)
            filled[:, :columns] = acts
            matrix.run(filled, acc)
            assert np.array_equal(acc[0, :rows], expected)
            runs[name] = functools.partial(
                clock.ours, *matrix.call(filled, acc))
            kept.append((matrix, filled, acc))
        for cold, repeats in ((False, 200), (True, 40)):
            times: dict[str, list[float]] = {name: [] for name in runs}
            for _ in range(repeats):
                for name in rng.permutation(list(runs)):
                    times[str(name)].append(seconds(runs[str(name)], cold))
            medians = [float(np.median(values)) for values in times.values()]
            print(f"{columns:5} x {rows:5}    {'cold' if cold else 'warm'}   " + "".join(
                f"{1e6 * value:10.1f} ({medians[0] / value:4.2f})" for value in medians),
                flush=True)


if __name__ == "__main__":
    main()
