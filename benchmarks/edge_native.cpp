// A float32 product around Sterna's integer one, for benchmarks/edge_peers.py.
#include <cmath>
#include <cstdint>

// y [rows] = matrix times x [columns]; x is quantised to 8 bits by its absolute maximum. acts has
// the columns and acc the rows, rounded up to 16; the padding of acts is zero.
extern "C" void product(void (*matmul)(const void*, const int8_t*, int64_t, int32_t*),
                        const void* matrix, const float* x, int8_t* acts, int32_t* acc, float* y,
                        int64_t columns, int64_t rows) {
    // Parallel maxima, which the compiler can vectorise.
    float maxima[64] = {};
    int64_t i = 0;
    for (; i + 64 <= columns; i += 64) {
        for (int64_t j = 0; j < 64; ++j) {
            const float size = std::fabs(x[i + j]);
            maxima[j] = size > maxima[j] ? size : maxima[j];
        }
    }
    float largest = 0;
    for (; i < columns; ++i) largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
    for (float each : maxima) largest = each > largest ? each : largest;
    const float step = largest / 127, inverse = largest > 0 ? 127 / largest : 0;
    for (i = 0; i < columns; ++i) {
        acts[i] = static_cast<int8_t>(static_cast<int32_t>(std::rint(x[i] * inverse)));
    }
    matmul(matrix, acts, 1, acc);
    for (i = 0; i < rows; ++i) y[i] = static_cast<float>(acc[i]) * step;
}
