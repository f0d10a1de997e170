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
constexpr int64_t kPrefetchBytes = 8192;

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
