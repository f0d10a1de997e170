// Operations between two projections, in one pass each: the recurrence alone and MLGRU with its
// gates, the product of a GLU, the sum of a residual. Gates are recomputed in the backward pass,
// which takes less time than reading them.
//
// Arguments are filled in by library.py, with the same names and order. Channels of a recurrence
// are independent: a thread takes some of them, and keeps their state in the L1 cache over time. No
// result depends on the number of threads.

#include <omp.h>

#include <algorithm>

#include "entry.hpp"
#include "products.hpp"

namespace sterna {

struct Scan {
    int64_t steps, lanes, threads;
    const float* forget;     // [steps, lanes], as all without a shape here
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
    const float* grad_last;  // [batch, channels], null: none
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

namespace {

// Exact for f = 0 and for f = 1.
inline Floats next(Floats f, Floats h, Floats c) { return f * h + (c - f * c); }

// The recurrence h[t] = f[t] h[t-1] + (1 - f[t]) c[t] and its gradients -------------------------

// Channels that a thread takes at once; their states fit into the L1 cache.
constexpr int64_t kMostChannels = 2048;

// A thread takes some channels of one sequence, and goes through time.
template <class Body>
void for_channels(int64_t batch, int64_t channels, int64_t threads, const Body& body) {
    const int64_t pieces = std::max((threads + batch - 1) / batch,
                                    (channels + kMostChannels - 1) / kMostChannels);
    const int64_t each = ((channels + pieces - 1) / pieces + kLanes - 1) / kLanes * kLanes;
#pragma omp parallel for collapse(2) num_threads(threads)
    for (int64_t b = 0; b < batch; ++b)
        for (int64_t piece = 0; piece < pieces; ++piece) {
            const int64_t first = piece * each, count = std::min(each, channels - first);
            if (count > 0) body(b, first, count);
        }
}

void scan_forward(const Scan& a) {
    for_channels(1, a.lanes, a.threads, [&](int64_t, int64_t first, int64_t count) {
        float state[kMostChannels];
        std::memcpy(state, a.initial + first, static_cast<size_t>(count) * sizeof(float));
        for (int64_t t = 0; t < a.steps; ++t)
            for (int64_t i = 0; i < count; i += kLanes) {
                const int64_t at = t * a.lanes + first + i, left = count - i;
                const Floats h = next(
                    load_part(a.forget + at, left), load_part(state + i, left),
                    load_part(a.candidate + at, left));
                store_part(state + i, h, left);
                store_part(a.states + at, h, left);
            }
    });
}

void scan_backward(const Scan& a) {
    for_channels(1, a.lanes, a.threads, [&](int64_t, int64_t first, int64_t count) {
        float carried[kMostChannels] = {};  // what the step after passes on to the state
        for (int64_t t = a.steps - 1; t >= 0; --t) {
            const float* before = t > 0 ? a.states + (t - 1) * a.lanes : a.initial;
            for (int64_t i = 0; i < count; i += kLanes) {
                const int64_t at = t * a.lanes + first + i, left = count - i;
                const Floats f = load_part(a.forget + at, left);
                const Floats to_state =
                    load_part(a.grad + at, left) + load_part(carried + i, left);
                const Floats kept = f * to_state;
                store_part(carried + i, kept, left);
                store_part(a.to_candidate + at, to_state - kept, left);
                store_part(a.to_forget + at,
                           (load_part(before + first + i, left)
                            - load_part(a.candidate + at, left)) * to_state, left);
            }
        }
        std::memcpy(a.to_initial + first, carried, static_cast<size_t>(count) * sizeof(float));
    });
}

// Gates, products and sums ------------------------------------------------------------------------

struct Gates {
    Floats forget, inner, candidate, output;
    Gates(const float* z, int64_t channels, int64_t left)
        : forget(sigmoid(load_part(z, left))), inner(sigmoid(load_part(z + channels, left))),
          candidate(load_part(z + channels, left) * inner),
          output(sigmoid(load_part(z + 2 * channels, left))) {}
};

// silu'(z), given s = sigmoid(z) and silu(z) = z s.
inline Floats silu_slope(Floats s, Floats silu) { return s + silu * (1.0f - s); }

void gated_scan_forward(const GatedScan& a) {
    for_channels(a.batch, a.channels, a.threads, [&](int64_t b, int64_t first, int64_t count) {
        float state[kMostChannels];
        std::memcpy(state, a.initial + b * a.channels + first,
                    static_cast<size_t>(count) * sizeof(float));
        for (int64_t t = 0; t < a.steps; ++t)
            for (int64_t i = 0; i < count; i += kLanes) {
                const int64_t row = t * a.batch + b, at = row * a.channels + first + i;
                const int64_t left = count - i;
                const Gates gate(
                    a.z + row * 3 * a.channels + first + i, a.channels, left);
                const Floats h = next(gate.forget, load_part(state + i, left), gate.candidate);
                store_part(state + i, h, left);
                store_part(a.states + at, h, left);
                store_part(a.out + at, gate.output * h, left);
            }
    });
}

void gated_scan_backward(const GatedScan& a) {
    for_channels(a.batch, a.channels, a.threads, [&](int64_t b, int64_t first, int64_t count) {
        float carried[kMostChannels] = {};  // what the step after passes on to the state
        const int64_t sequence = b * a.channels + first;
        const size_t bytes = static_cast<size_t>(count) * sizeof(float);
        if (a.grad_last) std::memcpy(carried, a.grad_last + sequence, bytes);
        for (int64_t t = a.steps - 1; t >= 0; --t)
            for (int64_t i = 0; i < count; i += kLanes) {
                const int64_t row = t * a.batch + b, at = row * a.channels + first + i;
                const int64_t left = count - i;
                const int64_t z = row * 3 * a.channels + first + i;
                const Gates gate(a.z + z, a.channels, left);
                const float* before =
                    t > 0 ? a.states + at - a.batch * a.channels : a.initial + sequence + i;
                const Floats h = load_part(a.states + at, left);
                const Floats grad = load_part(a.grad + at, left);
                const Floats to_state = grad * gate.output + load_part(carried + i, left);
                const Floats kept = gate.forget * to_state;
                store_part(carried + i, kept, left);
                const Floats to_forget = (load_part(before, left) - gate.candidate) * to_state;
                store_part(a.to_z + z, to_forget * (gate.forget * (1.0f - gate.forget)), left);
                store_part(a.to_z + z + a.channels,
                           (to_state - kept) * silu_slope(gate.inner, gate.candidate), left);
                store_part(a.to_z + z + 2 * a.channels,
                           grad * h * (gate.output * (1.0f - gate.output)), left);
            }
        std::memcpy(a.to_initial + sequence, carried, bytes);
    });
}

void gated_silu_forward(const GatedSilu& a) {
#pragma omp parallel for num_threads(a.threads)
    for (int64_t token = 0; token < a.tokens; ++token) {
        const float* z = a.z + token * 2 * a.channels;
        for (int64_t i = 0; i < a.channels; i += kLanes) {
            const int64_t left = a.channels - i;
            const Floats gate = load_part(z + i, left);
            const Floats product = gate * sigmoid(gate) * load_part(z + a.channels + i, left);
            store_part(a.out + token * a.channels + i, limited(product, a.limit), left);
        }
    }
}

void gated_silu_backward(const GatedSilu& a) {
#pragma omp parallel for num_threads(a.threads)
    for (int64_t token = 0; token < a.tokens; ++token) {
        const float* z = a.z + token * 2 * a.channels;
        float* to_z = a.to_z + token * 2 * a.channels;
        for (int64_t i = 0; i < a.channels; i += kLanes) {
            const int64_t left = a.channels - i;
            const Floats gate = load_part(z + i, left), up = load_part(z + a.channels + i, left);
            const Floats s = sigmoid(gate), silu = gate * s, product = silu * up;
            Floats grad = load_part(a.grad + token * a.channels + i, left);
            grad = ((product >= a.limit) | (product <= -a.limit)) ? Floats{} : grad;
            store_part(to_z + i, grad * up * silu_slope(s, silu), left);
            store_part(to_z + a.channels + i, grad * silu, left);
        }
    }
}

// A multiple of the lanes, so that only the last piece has a remainder.
constexpr int64_t kPiece = 4096;

void limited_sum_forward(const LimitedSum& a) {
#pragma omp parallel for num_threads(a.threads)
    for (int64_t first = 0; first < a.count; first += kPiece)
        for (int64_t i = first; i < std::min(a.count, first + kPiece); i += kLanes) {
            const int64_t left = a.count - i;
            const Floats sum = load_part(a.first + i, left) + load_part(a.second + i, left);
            store_part(a.out + i, limited(sum, a.limit), left);
        }
}

void limited_sum_backward(const LimitedSum& a) {
#pragma omp parallel for num_threads(a.threads)
    for (int64_t first = 0; first < a.count; first += kPiece)
        for (int64_t i = first; i < std::min(a.count, first + kPiece); i += kLanes) {
            const int64_t left = a.count - i;
            const Floats out = load_part(a.out + i, left), grad = load_part(a.grad + i, left);
            store_part(a.to_both + i,
                       ((out >= a.limit) | (out <= -a.limit)) ? Floats{} : grad, left);
        }
}

}  // namespace
}  // namespace sterna

STERNA_ENTRY(scan_forward, Scan)
STERNA_ENTRY(scan_backward, Scan)
STERNA_ENTRY(gated_scan_forward, GatedScan)
STERNA_ENTRY(gated_scan_backward, GatedScan)
STERNA_ENTRY(gated_silu_forward, GatedSilu)
STERNA_ENTRY(gated_silu_backward, GatedSilu)
STERNA_ENTRY(limited_sum_forward, LimitedSum)
STERNA_ENTRY(limited_sum_backward, LimitedSum)

STERNA_EXPORT const char* sterna_training_features() {
#if defined(__AVX512F__)
    return "AVX-512"
#elif defined(__AVX2__)
    return "AVX2"
#elif defined(__ARM_NEON)
    return "NEON"
#else
    return "portable"
#endif
#if STERNA_INT8
           ", products of int8 forward"
#endif
#if STERNA_BFLOAT16
           ", of bfloat16 back"
#endif
        ;
}
