// Plain C functions, for benchmarks and tests through ctypes.
#include <cstring>
#include <exception>
#include <numeric>

#include "kernel.hpp"

namespace {

struct Matrix {
    const sterna::Kernel& kernel;
    sterna::Packed weight;
};

thread_local char g_error[256];

void keep(const char* message) {
    std::strncpy(g_error, message, sizeof g_error - 1);
}

const sterna::Kernel& kernel_of(const char* name) {
    return *name ? sterna::find_kernel(name) : sterna::choose_kernel();
}

}  // namespace

// The reason for the last null pointer, in this thread.
STERNA_PUBLIC const char* sterna_error() { return g_error; }

// The kernel that `name` (or, if empty, this processor and STERNA_KERNEL) gives; or null.
STERNA_PUBLIC const char* sterna_kernel(const char* name) {
    try {
        return kernel_of(name).name;
    } catch (const std::exception& error) {
        keep(error.what());
        return nullptr;
    }
}

// Packs trits of -1, 0, 1, int8 [columns, rows], for a kernel; null on an error.
STERNA_PUBLIC void* sterna_pack(const int8_t* trits, int64_t columns, int64_t rows,
                                const char* name) {
    try {
        const sterna::Kernel& kernel = kernel_of(name);
        return new Matrix{kernel, sterna::pack_int8(trits, columns, rows, kernel.group)};
    } catch (const std::exception& error) {
        keep(error.what());
        return nullptr;
    }
}

STERNA_PUBLIC void sterna_free(void* matrix) { delete static_cast<Matrix*>(matrix); }

STERNA_PUBLIC int64_t sterna_packed_bytes(const void* matrix) {
    return static_cast<int64_t>(static_cast<const Matrix*>(matrix)->weight.bytes.size());
}

// acc int32 [tokens, rows rounded up to 16] = acts int8 [tokens, columns rounded up to 16] times
// the matrix. |act| <= 127, filling zero; acc on a 64-byte boundary.
STERNA_PUBLIC void sterna_matmul(const void* matrix, const int8_t* acts, int64_t tokens,
                                 int32_t* acc) {
    const Matrix& m = *static_cast<const Matrix*>(matrix);
    const int64_t stride = m.weight.padded_columns();
    std::vector<int32_t> sums(static_cast<size_t>(tokens));
    for (int64_t t = 0; t < tokens; ++t) {
        sums[t] = std::accumulate(acts + t * stride, acts + (t + 1) * stride, int32_t{0});
    }
    m.kernel.matmul(m.weight, acts, sums.data(), tokens, acc);
}
