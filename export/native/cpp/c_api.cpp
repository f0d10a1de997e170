// Plain C functions, for benchmarks and tests through ctypes.
#include <cstring>
#include <exception>
#include <numeric>

#include "kernel.hpp"

namespace {

struct Product {
    const sterna::Kernel& kernel;
    sterna::Matrix matrix;
};

thread_local char g_error[256];

const sterna::Kernel& kernel_of(const char* name) {
    return *name ? sterna::find_kernel(name) : sterna::choose_kernel();
}

// What `make` returns; null on an error, which is kept.
template <class Make>
auto guard(Make make) -> decltype(make()) {
    try {
        return make();
    } catch (const std::exception& error) {
        std::strncpy(g_error, error.what(), sizeof g_error - 1);
        return nullptr;
    }
}

}  // namespace

// The reason for the last null pointer, in this thread.
STERNA_PUBLIC const char* sterna_error() { return g_error; }

// The kernel that `name` (or, if empty, this processor and STERNA_KERNEL) gives; or null.
STERNA_PUBLIC const char* sterna_kernel(const char* name) {
    return guard([name] { return kernel_of(name).name; });
}

// A matrix for a kernel, whose tiles the caller keeps; null on an error.
STERNA_PUBLIC void* sterna_matrix(const uint8_t* tiles, int64_t rows, int64_t columns,
                                  const char* name) {
    return guard([=] { return new Product{kernel_of(name), sterna::Matrix(tiles, rows, columns)}; });
}

STERNA_PUBLIC void sterna_free(void* product) { delete static_cast<Product*>(product); }

// acc int32 [tokens, rows rounded up to 16] = acts int8 [tokens, columns rounded up to 16] times
// the matrix. |act| <= 127, filling zero.
STERNA_PUBLIC void sterna_matmul(const void* product, const int8_t* acts, int64_t tokens,
                                 int32_t* acc) {
    const Product& own = *static_cast<const Product*>(product);
    const int64_t stride = own.matrix.padded_columns();
    std::vector<int32_t> sums(static_cast<size_t>(tokens));
    for (int64_t t = 0; t < tokens; ++t) {
        sums[t] = std::accumulate(acts + t * stride, acts + (t + 1) * stride, int32_t{0});
    }
    own.kernel.matmul(own.matrix, acts, sums.data(), tokens, acc);
}
