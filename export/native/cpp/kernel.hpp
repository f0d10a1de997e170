// The kernels: the same functions for each instruction set, and the choice between them.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "model.hpp"

namespace sterna {

// One of several parts of a work, by its number.
using Part = std::function<void(int64_t)>;

// What a call works on. Rows are time-major: row = position * batch + sequence.
struct Call {
    const int64_t* tokens;      // [batch, length], below the vocabulary
    int32_t* state;             // [states, batch, width], updated
    int32_t* logits;            // [batch, length - from, logits]
    int64_t batch, length;
    int64_t from;               // the first position whose logits are wanted
    // Computes all parts of this number, by several threads or one.
    std::function<void(int64_t, const Part&)> parallel;
};

struct Kernel {
    const char* name;
    bool (*supported)();
    // acts [tokens, columns padded], |act| <= 127, padding zero; sums [tokens]: their sums.
    // Writes acc [tokens, rows padded].
    void (*matmul)(const Matrix& matrix, const int8_t* acts, const int32_t* sums, int64_t tokens,
                   int32_t* acc);
    void (*run)(const Model& model, const Call& call);
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
