// The recurrence h[t] = f[t] h[t-1] + (1 - f[t]) c[t] and its gradients, in one pass over time.
//
// Channels know nothing of each other: a thread takes some of them, and keeps their state in the
// first cache while time goes by. No result depends on the number of threads.

#include <omp.h>

#include <algorithm>
#include <vector>

#include "entry.hpp"
#include "gates.hpp"

namespace sterna {
namespace {

// Channels that a thread takes at once; so many states fit into the first cache.
constexpr int64_t kMostLanes = 2048;

int64_t lanes_each(int64_t lanes, int64_t pieces) {
    const int64_t each = (lanes + pieces - 1) / pieces;
    return std::min(kMostLanes, (each + kLanes - 1) / kLanes * kLanes);
}

template <class Body>
void for_lanes(int64_t lanes, int64_t threads, const Body& body) {
    const int64_t each = lanes_each(lanes, threads);
#pragma omp parallel for num_threads(threads)
    for (int64_t first = 0; first < lanes; first += each)
        body(first, std::min(each, lanes - first));
}

void scan_forward(const Scan& a) {
    for_lanes(a.lanes, a.threads, [&](int64_t first, int64_t count) {
        float state[kMostLanes];
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
    for_lanes(a.lanes, a.threads, [&](int64_t first, int64_t count) {
        float carried[kMostLanes] = {};  // what the step after passes on to the state
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

}  // namespace
}  // namespace sterna

STERNA_ENTRY(scan_forward, Scan)
STERNA_ENTRY(scan_backward, Scan)
