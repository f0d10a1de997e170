// The kernels: the same functions for each instruction set, and the choice between them.
#pragma once

#include "model.hpp"

namespace sterna {

struct Kernel {
    const char* name;
    // Blocks that lie side by side in a packed matrix.
    int64_t group;
    bool (*supported)();
    // acts [tokens, columns padded], |act| <= 127, padding zero; sums [tokens]: their sums.
    // Writes acc [tokens, rows padded].
    void (*matmul)(const Packed& weight, const int8_t* acts, const int32_t* sums, int64_t tokens,
                   int32_t* acc);
    // x, y [length, batch, d]; h, h_next [batch, d].
    void (*mlgru)(const Mlgru& layer, const double* x, const double* h, int64_t length,
                  int64_t batch, double* y, double* h_next);
    void (*glu)(const Glu& layer, const double* x, int64_t tokens, double* y);
    void (*head)(const Head& layer, const double* x, int64_t tokens, double* logits);
};

extern const Kernel kPortable;
#if defined(__x86_64__)
extern const Kernel kAvx2;
extern const Kernel kAvx512;
#elif defined(__aarch64__)
extern const Kernel kNeon;
extern const Kernel kNeonDot;
#endif

// The best kernel that this processor has, or the one that STERNA_KERNEL names. Throws
// std::invalid_argument if that one is unknown or cannot run here.
const Kernel& choose_kernel();
// By name; nullptr or "" is the best one. `what` is what messages call the name.
const Kernel& find_kernel(const char* name, const char* what = "kernel");

}  // namespace sterna
