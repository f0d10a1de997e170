// The kernel for AVX-512 with VNNI.
//
// vpdpbusd multiplies unsigned with signed bytes and adds four products to a 32-bit sum, without
// saturation: a lane is a row, and its four bytes are columns. The three upper fields of a byte
// stay where they are, so their sums come out 4, 16 and 64 times too large, and a shift at the
// end makes them right; a sum is then at most 64 * 2 * 127 * 16,384 < 2^29.
#include "kernel.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,bmi2")

namespace sterna {
namespace avx512 {

constexpr int64_t kBlocks = 4, kTokens = 4;

inline __m512i broadcast(const int8_t* acts) {
    int32_t four;
    __builtin_memcpy(&four, acts, 4);
    return _mm512_set1_epi32(four);
}

// One token: four accumulators, and four more for every other step; no shifts. The processor reads
// ahead by itself: a prefetch as in kernel_avx2.cpp cost a fifth, and in huge pages gained nothing.
inline void dot_one(const uint8_t* weight, int64_t steps, const int8_t* acts, int32_t sum,
                    int32_t* acc) {
    __m512i mask[4], total[2][4];
    for (int field = 0; field < 4; ++field) {
        mask[field] = _mm512_set1_epi8(static_cast<char>(3 << (2 * field)));
        total[0][field] = total[1][field] = _mm512_setzero_si512();
    }
    total[0][0] = _mm512_set1_epi32(-sum);
    const auto add = [&](int64_t step, __m512i* totals) {
        const __m512i w = _mm512_loadu_si512(weight + step * kBlockBytes);
#pragma GCC unroll 4
        for (int field = 0; field < 4; ++field) {
            totals[field] = _mm512_dpbusd_epi32(
                totals[field], _mm512_and_si512(w, mask[field]),
                broadcast(acts + step * kStepColumns + 4 * field));
        }
    };
    int64_t step = 0;
    for (; step + 2 <= steps; step += 2) {
        add(step, total[0]);
        add(step + 1, total[1]);
    }
    if (step < steps) add(step, total[0]);
    for (int field = 0; field < 4; ++field) {
        total[0][field] = _mm512_add_epi32(total[0][field], total[1][field]);
    }
    __m512i all = total[0][0];
    all = _mm512_add_epi32(all, _mm512_srai_epi32(total[0][1], 2));
    all = _mm512_add_epi32(all, _mm512_srai_epi32(total[0][2], 4));
    all = _mm512_add_epi32(all, _mm512_srai_epi32(total[0][3], 6));
    _mm512_storeu_si512(acc, all);
}

// Several tokens share the unpacked weights: one accumulator for each block and token.
template <int NB, int NT>
inline void dot_many(const uint8_t* weight, int64_t block_bytes, int64_t steps, const int8_t* acts,
                     int64_t acts_stride, const int32_t* sums, int32_t* acc, int64_t acc_stride) {
    const __m512i mask = _mm512_set1_epi8(3);
    __m512i total[NB][NT];
#pragma GCC unroll 4
    for (int token = 0; token < NT; ++token) {
#pragma GCC unroll 4
        for (int block = 0; block < NB; ++block) {
            total[block][token] = _mm512_set1_epi32(-sums[token]);
        }
    }
    for (int64_t step = 0; step < steps; ++step) {
        __m512i w[NB];
#pragma GCC unroll 4
        for (int block = 0; block < NB; ++block) {
            w[block] = _mm512_loadu_si512(weight + block * block_bytes);
        }
#pragma GCC unroll 4
        for (int field = 0; field < 4; ++field) {
            __m512i q[NT];
#pragma GCC unroll 4
            for (int token = 0; token < NT; ++token) {
                q[token] = broadcast(acts + token * acts_stride + 4 * field);
            }
#pragma GCC unroll 4
            for (int block = 0; block < NB; ++block) {
                const __m512i codes = _mm512_and_si512(w[block], mask);
                w[block] = _mm512_srli_epi16(w[block], 2);
#pragma GCC unroll 4
                for (int token = 0; token < NT; ++token) {
                    total[block][token] =
                        _mm512_dpbusd_epi32(total[block][token], codes, q[token]);
                }
            }
        }
        weight += kBlockBytes;
        acts += kStepColumns;
    }
    for (int token = 0; token < NT; ++token) {
        for (int block = 0; block < NB; ++block) {
            _mm512_storeu_si512(acc + token * acc_stride + block * kBlockRows,
                               total[block][token]);
        }
    }
}

template <int NB, int NT>
inline void dot(const uint8_t* weight, int64_t block_bytes, int64_t steps, const int8_t* acts,
                int64_t acts_stride, const int32_t* sums, int32_t* acc, int64_t acc_stride) {
    if constexpr (NT == 1) {
        dot_one(weight, steps, acts, sums[0], acc);
    } else {
        dot_many<NB, NT>(weight, block_bytes, steps, acts, acts_stride, sums, acc, acc_stride);
    }
}

#include "records.hpp"

bool supported() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
        && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx2")
        && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

}  // namespace avx512
}  // namespace sterna

#pragma GCC pop_options

namespace sterna {
const Kernel kAvx512 = {
    "avx512vnni", avx512::supported, avx512::matmul, avx512::run};
}  // namespace sterna
#endif
