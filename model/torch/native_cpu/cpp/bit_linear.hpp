// Arguments of both passes of a BitLinear, filled in by library.py (same names and order).
#pragma once

#include <cstdint>

namespace sterna {

struct BitLinear {
    int64_t tokens, columns, rows, parts, threads;
    // Of every matrix: its latent weights [rows of it, columns], its bias, its rows and its scale.
    const float* const* weights;
    const float* const* biases;  // null: none
    const int64_t* rows_of;
    const float* scales;
    float limit;
    int32_t halves;              // backward pass: products may take their inputs in bfloat16
    const float* x;        // [tokens, columns]
    int8_t* q;             // [tokens, words(columns, 4) * 4], zeros at the end of a row
    float* gain;           // [tokens]
    float* inverse;        // [tokens]
    int8_t* codes;         // [rows, columns]
    float* out;            // [tokens, rows], limited
    // Backward pass.
    const float* grad;     // [tokens, rows]
    float* to_x;           // [tokens, columns]
    float* to_weights;     // [rows, columns]
    float* to_biases;      // [rows], null if there are none
};

inline int64_t words(int64_t values, int64_t each) { return (values + each - 1) / each; }

// Tokens processed together: their vectors stay in the L1 cache. Sums over tokens are added up in
// this order, whatever the number of threads.
constexpr int64_t kBlock = 48;

}  // namespace sterna
