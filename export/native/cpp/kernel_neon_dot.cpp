// The kernel for 64-bit ARM with dot products (sdot, ARMv8.2).
#include "kernel.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>

#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod")

namespace sterna {
namespace neon_dot {

constexpr int64_t kBlocks = 1, kTokens = 2;
constexpr unsigned long kDotProducts = 1ul << 20;   // HWCAP_ASIMDDP of Linux

template <int LANE>
inline int32x4_t add(int32x4_t sum, int8x16_t codes, int8x16_t q) {
    return vdotq_laneq_s32(sum, codes, q, LANE);
}

#include "neon.hpp"

#include "records.hpp"

bool supported() { return getauxval(AT_HWCAP) & kDotProducts; }

}  // namespace neon_dot
}  // namespace sterna

#pragma GCC pop_options

namespace sterna {
const Kernel kNeonDot = {"neon-dot", neon_dot::supported, neon_dot::matmul, neon_dot::run};
}  // namespace sterna
#endif
