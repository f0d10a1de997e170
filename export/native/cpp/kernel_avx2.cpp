// The kernel for AVX2.
//
// vpmaddubsw multiplies unsigned with signed bytes and adds pairs into 16 bits, saturating. The
// fields of a byte are taken at 1 and 4 times their value, so a pair is at most 4 * 2 * 254 =
// 2,032 and cannot saturate; 8 steps of two fields add up to at most 32,512 < 2^15, then the
// 16-bit sums are widened.
#include "kernel.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi2")

namespace sterna {
namespace avx2 {

constexpr int64_t kBlocks = 1, kTokens = 2;
constexpr int64_t kWidenSteps = 8;
constexpr int64_t kPrefetchBytes = 8192;       // a sixth faster than without

inline __m256i broadcast(const int8_t* acts) {
    int32_t four;
    __builtin_memcpy(&four, acts, 4);
    return _mm256_set1_epi32(four);
}

// Half a block (8 rows) is one vector.
template <int NB, int NT>
inline void dot(const uint8_t* weight, int64_t, int64_t steps, const int8_t* acts,
                int64_t acts_stride, const int32_t* sums, int32_t* acc, int64_t acc_stride) {
    static_assert(NB == 1);
    constexpr int kHalves = 2;
    const __m256i mask1 = _mm256_set1_epi8(3), mask4 = _mm256_set1_epi8(12);
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i total[kHalves][NT];
    for (int half = 0; half < kHalves; ++half) {
        for (int token = 0; token < NT; ++token) {
            total[half][token] = _mm256_set1_epi32(-sums[token]);
        }
    }
    for (int64_t done = 0; done < steps; done += kWidenSteps) {
        const int64_t last = done + kWidenSteps < steps ? done + kWidenSteps : steps;
        __m256i sum1[kHalves][NT], sum4[kHalves][NT];
#pragma GCC unroll 4
        for (int half = 0; half < kHalves; ++half) {
#pragma GCC unroll 4
            for (int token = 0; token < NT; ++token) {
                sum1[half][token] = sum4[half][token] = _mm256_setzero_si256();
            }
        }
        for (int64_t step = done; step < last; ++step) {
#pragma GCC unroll 4
            for (int half = 0; half < kHalves; ++half) {
                const __m256i w = _mm256_loadu_si256(
                    reinterpret_cast<const __m256i*>(weight + half * 32));
                const __m256i upper = _mm256_srli_epi16(w, 4);
                const __m256i codes[4] = {
                    _mm256_and_si256(w, mask1), _mm256_and_si256(w, mask4),
                    _mm256_and_si256(upper, mask1), _mm256_and_si256(upper, mask4)};
#pragma GCC unroll 4
                for (int token = 0; token < NT; ++token) {
                    const int8_t* const q = acts + token * acts_stride;
                    const __m256i first = _mm256_add_epi16(
                        _mm256_maddubs_epi16(codes[0], broadcast(q)),
                        _mm256_maddubs_epi16(codes[2], broadcast(q + 8)));
                    const __m256i second = _mm256_add_epi16(
                        _mm256_maddubs_epi16(codes[1], broadcast(q + 4)),
                        _mm256_maddubs_epi16(codes[3], broadcast(q + 12)));
                    sum1[half][token] = _mm256_add_epi16(sum1[half][token], first);
                    sum4[half][token] = _mm256_add_epi16(sum4[half][token], second);
                }
            }
            _mm_prefetch(reinterpret_cast<const char*>(weight + kPrefetchBytes), _MM_HINT_T0);
            weight += kBlockBytes;
            acts += kStepColumns;
        }
#pragma GCC unroll 4
        for (int half = 0; half < kHalves; ++half) {
#pragma GCC unroll 4
            for (int token = 0; token < NT; ++token) {
                const __m256i once = _mm256_madd_epi16(sum1[half][token], ones);
                const __m256i fourfold = _mm256_madd_epi16(sum4[half][token], ones);
                total[half][token] = _mm256_add_epi32(
                    total[half][token],
                    _mm256_add_epi32(once, _mm256_srai_epi32(fourfold, 2)));
            }
        }
    }
    for (int half = 0; half < kHalves; ++half) {
        for (int token = 0; token < NT; ++token) {
            _mm256_storeu_si256(
                reinterpret_cast<__m256i*>(acc + token * acc_stride + half * 8),
                total[half][token]);
        }
    }
}

// Several tokens take codes that are unpacked once, each at its own value: a pair is at most 508,
// and the 64 fields of 16 steps add up to at most 32,512 again.
constexpr int64_t kPanelSteps = 64, kPanelWidenSteps = 16;
constexpr int kPanelTokens = 4;

inline void unpack(const uint8_t* weight, int64_t steps, __m256i* codes) {
    const __m256i mask = _mm256_set1_epi8(3);
    for (int64_t step = 0; step < steps; ++step) {
        for (int half = 0; half < 2; ++half, weight += 32) {
            __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight));
            for (int field = 0; field < 4; ++field, w = _mm256_srli_epi16(w, 2)) {
                codes[step * 8 + field * 2 + half] = _mm256_and_si256(w, mask);
            }
        }
    }
}

// Adds to acc [kPanelTokens, 16 rows].
inline void add_codes(const __m256i* codes, int64_t steps, const int8_t* acts, int64_t acts_stride,
                      int32_t* acc, int64_t acc_stride) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int64_t done = 0; done < steps; done += kPanelWidenSteps) {
        __m256i sum[kPanelTokens][2];
#pragma GCC unroll 4
        for (int token = 0; token < kPanelTokens; ++token) {
            sum[token][0] = sum[token][1] = _mm256_setzero_si256();
        }
        const int64_t last = std::min(done + kPanelWidenSteps, steps);
        for (int64_t step = done; step < last; ++step) {
#pragma GCC unroll 4
            for (int field = 0; field < 4; ++field) {
#pragma GCC unroll 4
                for (int token = 0; token < kPanelTokens; ++token) {
                    const __m256i q = broadcast(acts + token * acts_stride + field * 4);
                    __m256i* const own = sum[token];
                    own[0] = _mm256_add_epi16(own[0], _mm256_maddubs_epi16(codes[0], q));
                    own[1] = _mm256_add_epi16(own[1], _mm256_maddubs_epi16(codes[1], q));
                    // In this order: GCC's own takes more registers than there are.
                    __asm__("" : "+x"(own[0]), "+x"(own[1]));
                }
                codes += 2;
            }
            acts += kStepColumns;
        }
#pragma GCC unroll 4
        for (int token = 0; token < kPanelTokens; ++token) {
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
                __m256i* const to =
                    reinterpret_cast<__m256i*>(acc + token * acc_stride + half * 8);
                _mm256_storeu_si256(to, _mm256_add_epi32(
                    _mm256_loadu_si256(to), _mm256_madd_epi16(sum[token][half], ones)));
            }
        }
    }
}

#define STERNA_PANEL
inline int64_t dot_panel(const uint8_t* weight, int64_t steps, const int8_t* acts,
                         int64_t acts_stride, const int32_t* sums, int64_t tokens, int32_t* acc,
                         int64_t acc_stride) {
    __m256i codes[kPanelSteps * 8];
    const int64_t count = tokens / kPanelTokens * kPanelTokens;
    for (int64_t t = 0; t < count; ++t) {
        std::fill_n(acc + t * acc_stride, kBlockRows, -sums[t]);
    }
    for (int64_t first = 0; count && first < steps; first += kPanelSteps) {
        const int64_t taken = std::min(kPanelSteps, steps - first);
        unpack(weight + first * kBlockBytes, taken, codes);
        for (int64_t t = 0; t < count; t += kPanelTokens) {
            add_codes(codes, taken, acts + t * acts_stride + first * kStepColumns, acts_stride,
                      acc + t * acc_stride, acc_stride);
        }
    }
    return count;
}

#include "records.hpp"

bool supported() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
        && __builtin_cpu_supports("bmi2");
}

}  // namespace avx2
}  // namespace sterna

#pragma GCC pop_options

namespace sterna {
const Kernel kAvx2 = {"avx2", avx2::supported, avx2::matmul, avx2::run};
}  // namespace sterna
#endif
