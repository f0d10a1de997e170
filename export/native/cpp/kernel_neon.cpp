// The kernel for any 64-bit ARM: 8-bit products in 16 bits, then pairwise sums.
//
// A product is at most 4 * 2 * 127 and a pair 2,032, so 16 bits hold it.
#include "kernel.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>

namespace sterna {
namespace neon {

constexpr int64_t kBlocks = 1, kTokens = 2;

// sum[row] += the four products of a row's bytes with bytes 4 * LANE .. of q.
template <int LANE>
inline int32x4_t add(int32x4_t sum, int8x16_t codes, int8x16_t q) {
    const int8x16_t four = vreinterpretq_s8_s32(
        vdupq_laneq_s32(vreinterpretq_s32_s8(q), LANE));
    const int16x8_t low = vmull_s8(vget_low_s8(codes), vget_low_s8(four));
    const int16x8_t high = vmull_high_s8(codes, four);
    return vpadalq_s16(sum, vpaddq_s16(low, high));
}

#include "neon.hpp"

#include "records.hpp"

bool supported() { return true; }

}  // namespace neon

const Kernel kNeon = {"neon", neon::supported, neon::matmul, neon::run};

}  // namespace sterna
#endif
