// What the element-wise passes know, filled in by library.py (names and order are the same), and
// the arithmetic that they share.
#pragma once

#include "vectors.hpp"

namespace sterna {

struct Scan {
    int64_t steps, lanes, threads;
    const float* forget;     // [steps, lanes], as all that have no shape here
    const float* candidate;
    const float* initial;    // [lanes]
    float* states;
    // Of the pass back.
    const float* grad;
    float* to_forget;
    float* to_candidate;
    float* to_initial;       // [lanes]
};

struct GatedScan {
    int64_t steps, batch, channels, threads;
    const float* z;          // [steps, batch, 3, channels]
    const float* initial;    // [batch, channels]
    float* states;           // [steps, batch, channels]
    float* out;              // [steps, batch, channels]
    // Of the pass back.
    const float* grad;       // [steps, batch, channels]
    const float* grad_last;  // [batch, channels], null: nothing came
    float* to_z;             // [steps, batch, 3, channels]
    float* to_initial;       // [batch, channels]
};

struct GatedSilu {
    int64_t tokens, channels, threads;
    float limit;
    const float* z;          // [tokens, 2, channels]
    float* out;              // [tokens, channels]
    const float* grad;       // [tokens, channels]
    float* to_z;             // [tokens, 2, channels]
};

struct LimitedSum {
    int64_t count, threads;
    float limit;
    const float* first;
    const float* second;
    float* out;
    const float* grad;
    float* to_both;
};

// Exact for f = 0 and for f = 1.
inline Floats next(Floats f, Floats h, Floats c) { return f * h + (c - f * c); }

}  // namespace sterna
