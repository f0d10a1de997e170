// Plain C functions, for benchmarks and tests through ctypes.
#include <cstring>
#include <exception>

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

}  // namespace

// The reason for the last null pointer, in this thread.
STERNA_PUBLIC const char* sterna_error() { return g_error; }

// The kernel that `name` (or, if empty, this processor and STERNA_KERNEL) gives; or null.
STERNA_PUBLIC const char* sterna_kernel(const char* name) {
    try {
        return (name && *name ? sterna::find_kernel(name) : sterna::choose_kernel()).name;
    } catch (const std::exception& error) {
        keep(error.what());
        return nullptr;
    }
}

// Packs trits of -1, 0, 1, int8 [rows, columns], for a kernel; null on an error.
STERNA_PUBLIC void* sterna_pack(const int8_t* trits, int64_t rows, int64_t columns,
                                const char* name) {
    try {
        const sterna::Kernel& kernel =
            name && *name ? sterna::find_kernel(name) : sterna::choose_kernel();
        std::string turned(static_cast<size_t>(rows * columns), '\0');
        for (int64_t row = 0; row < rows; ++row) {
            for (int64_t column = 0; column < columns; ++column) {
                turned[column * rows + row] = static_cast<char>(trits[row * columns + column]);
            }
        }
        return new Matrix{kernel, sterna::pack_int8(
            reinterpret_cast<const int8_t*>(turned.data()), columns, rows, kernel.group)};
    } catch (const std::exception& error) {
        keep(error.what());
        return nullptr;
    }
}

STERNA_PUBLIC void sterna_free(void* matrix) { delete static_cast<Matrix*>(matrix); }

// Bytes of a packed matrix, and where they are.
STERNA_PUBLIC int64_t sterna_packed_bytes(const void* matrix) {
    return static_cast<int64_t>(static_cast<const Matrix*>(matrix)->weight.bytes.size());
}
STERNA_PUBLIC const void* sterna_packed_data(const void* matrix) {
    return static_cast<const Matrix*>(matrix)->weight.bytes.data();
}

// acc int32 [tokens, rows rounded up to 16] = acts int8 [tokens, columns rounded up to 16] times
// the matrix. |act| <= 127, filling zero; acc on a 64-byte boundary.
STERNA_PUBLIC void sterna_matmul(const void* matrix, const int8_t* acts, int64_t tokens,
                                 int32_t* acc) {
    const Matrix& m = *static_cast<const Matrix*>(matrix);
    const int64_t stride = m.weight.padded_columns();
    constexpr int64_t kMany = 64;
    int32_t sums[kMany];
    for (int64_t first = 0; first < tokens; first += kMany) {
        const int64_t count = tokens - first < kMany ? tokens - first : kMany;
        for (int64_t t = 0; t < count; ++t) {
            const int8_t* const row = acts + (first + t) * stride;
            int32_t sum = 0;
            for (int64_t i = 0; i < stride; ++i) sum += row[i];
            sums[t] = sum;
        }
        m.kernel.matmul(m.weight, acts + first * stride, sums, count,
                        acc + first * m.weight.padded_rows());
    }
}
